"""Files of summaries as the first release wrote them: no scatter of columns, labels at the end."""

import json
import struct
import zlib

import numpy as np
import pytest


@pytest.fixture(scope="session")
def old_file():
    """Bytes of the arrays of a summary, with a checksum that is right."""

    def written(components, singular_values, mean, n_samples, scatter, **labels):
        text = json.dumps({"library": "old", **labels}).encode() if labels else b""
        version = b"FEDPCA\x00\x02" if labels else b"FEDPCA\x00\x01"
        shape = np.shape(components)[::-1]
        header = struct.pack(
            "<8sBBIHQQdd", version, 8, 1, len(text), 0, *shape, float(n_samples), float(scatter)
        )
        arrays = (np.asarray(a, "<f8").tobytes() for a in (mean, singular_values, components))
        body = header + b"".join(arrays) + text
        return body + struct.pack("<I", zlib.crc32(body))

    return written
