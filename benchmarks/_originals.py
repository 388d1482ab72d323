"""Published files of data that scikit-learn has no fetcher for, read as what the scenarios read.

A file is downloaded, or read from the folder of data if somebody has put it there. The arrays that
are made of it must be those of which the figures of the pages were taken, to the last bit.
"""

import csv
from hashlib import sha256
from urllib.request import urlopen

import numpy as np


def of_motes(text):
    """Light at 48 sensors of the Intel lab: a line for each time, numbers between tabs."""
    return {"X": np.loadtxt(text.splitlines(), dtype=np.float32, ndmin=2)}


def of_college(text):
    """Colleges of the United States: a CSV whose first columns are the name and "Private"."""
    head, *lines = csv.reader(text.splitlines())
    if "Private" not in head:
        raise ValueError(f"its columns are {head[:5]}, expected Private among them.")
    at = head.index("Private")
    return {
        "X": np.array([line[at + 1 :] for line in lines], dtype=np.float32),
        "y": np.array([line[at] == "Yes" for line in lines], dtype=np.uint8),
        "names": np.array(head[at + 1 :]),
    }


# For each file its address, what reads it, and the SHA-256 of X.
ORIGINALS = {
    "motes_light.npz": (
        "https://raw.githubusercontent.com/andylamp/federated_pca/"
        "1576d9c30ac3537cbf9adc0d0fc5009cca4144a0/datasets/q8calibLight.dat",
        of_motes,
        "a20f984c2b01eb8cc174d41ca4a79a8b3f3bd0d520677a40b0700857e4bc160c",
    ),
    "college.npz": (
        "https://www.statlearning.com/s/College.csv",
        of_college,
        "9542aa19a8e318d186abaa9495ca85147bc12988d396ec8ac267e2c45846bbf7",
    ),
}


def arrays_of(name, folder):
    """Arrays of a published file, which is in the folder or is downloaded."""
    address, read, digest = ORIGINALS[name]
    file = folder / address.rsplit("/", 1)[1]
    try:
        if file.exists():
            text = file.read_text(encoding="utf-8")
        else:
            with urlopen(address, timeout=60) as answer:
                text = answer.read().decode()
    except OSError as error:
        raise OSError(f"{error}; {address} may be put beside, as {file}") from error
    arrays = read(text)
    found = sha256(arrays["X"].astype("<f4").tobytes()).hexdigest()
    if found != digest:
        raise ValueError(
            f"{file.name} is not what it was: the SHA-256 of its numbers is {found}, expected "
            f"{digest}."
        )
    return arrays
