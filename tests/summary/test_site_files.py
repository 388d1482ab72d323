"""Sites that exchange files: names, sites, what is stated of privacy, faults, the command line.

The oracle is the singular value decomposition of all rows by numpy.
"""

import json
import struct
import time

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from summary_helpers import assert_summarises, fields_of
from test_codec import relabelled

import fedpca_sklearn
from fedpca_sklearn import (
    AnalyzeGauss,
    FederatedPCA,
    PrivacyLeakWarning,
    RobustMerge,
    StreamingPCA,
    Subspace,
    merge_subspaces,
)
from fedpca_sklearn.__main__ import main
from fedpca_sklearn._validation.containers import check_names

NAMES = ("age", "height", "weight", "pulse")
quiet = pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning")


def rows(n=60, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 4)) * [4, 3, 2, 1] + [50, 170, 70, 80]


def table(names=NAMES):
    return pd.DataFrame(rows(), columns=list(names))


def named(names=NAMES, X=None):
    return Subspace.from_rows(rows() if X is None else X)._named(names)


def of_site(*sites, seed=0, **stated):
    return Subspace.from_rows(rows(seed=seed))._replace(sites=sites, site=None, **stated)


@pytest.fixture
def files(tmp_path):
    """Two files of sites, and the rows in them."""
    parts = rows(60, 0), rows(40, 1)
    paths = [str(tmp_path / f"{site}.npz") for site in ("north", "south")]
    for path, site, X in zip(paths, ("north", "south"), parts, strict=True):
        named(X=X).save(path, site=site)
    return paths, np.concatenate(parts)


# -------------------------------------------------------------------------------- names and sites


def test_a_file_tells_names_site_and_the_library_that_wrote_it(files):
    summary = Subspace.load(files[0][0])
    assert (summary.feature_names, summary.site) == (NAMES, "north")
    data = summary.to_bytes()
    (length,) = struct.unpack_from("<I", data, 10)
    library = json.loads(data[-4 - length : -4])["library"]
    assert library == f"fedpca_sklearn {fedpca_sklearn.__version__}"
    assert len(Subspace.from_rows(rows()).to_bytes()) == 52 + 8 * (4 + 4 + 10)  # without labels


def test_names_and_sites_stay_with_a_summary():
    model = StreamingPCA(2).fit(table())
    assert model.subspace_.feature_names == NAMES
    merged = FederatedPCA.from_subspaces([model.subspace_, model.subspace_])
    assert_array_equal(merged.feature_names_in_, NAMES)
    merged.transform(table())
    summary = Subspace.from_rows(table())._replace(site="north")
    two = of_site("north", "south")._named(NAMES)
    for of, sites in ((summary, ("north",)), (two, ("north", "south"))):
        for other in (
            of.update(table(), 3),
            of.update(rows(), forgetting_factor=0.9),
            of.truncate(2),
            of.decay(0.5),
            of.decay(0),
            Subspace.from_bytes(of.to_bytes()),
        ):
            assert (other.feature_names, other.sites) == (NAMES, sites)
            assert other.site == (sites[0] if len(sites) == 1 else None)
    with pytest.warns(UserWarning, match=r"subspaces\[1\] has no site, unlike subspaces\[0\]"):
        both = merge_subspaces([summary, Subspace.from_rows(rows())])
    assert (both.feature_names, both.site, both.sites) == (NAMES, None, ("north",))
    assert merge_subspaces([two, of_site("west")]).sites == ("north", "south", "west")
    assert merge_subspaces([two, Subspace.empty(4)]).sites == ("north", "south")  # has no rows
    many = of_site(*(f"site {i:02d}" for i in range(30)))  # more than columns
    assert Subspace.from_bytes(many.to_bytes()).sites == many.sites
    for given in (iter(["south", "north"]), {"south", "north"}):
        assert Subspace(**fields_of(two, sites=given)).sites == ("north", "south")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("age", "size", "weight", "pulse"), r"lacks 'height' and has 'size'"),
        (("age", "weight", "height", "pulse"), r"another order: 'weight' at position 1, where"),
    ],
)
def test_other_columns_are_refused_by_name(names, message):
    for merge in (merge_subspaces, FederatedPCA.from_subspaces):
        with pytest.raises(ValueError, match=r"subspaces\[1\].*" + message):
            merge([named(), named(names)])
        fewer = Subspace.from_rows(rows()[:, :3])._named(NAMES[:3])  # by name, not only by number
        with pytest.raises(ValueError, match=r"subspaces\[1\], unlike .* lacks 'pulse'"):
            merge([named(), fewer])
    with pytest.raises(ValueError, match=r"X .*" + message):
        named().update(table(names))


def test_a_site_is_taken_once():
    composed, decomposed = "Z\u00fcrich", "Zu\u0308rich"
    one, other = of_site(composed), of_site(decomposed, seed=1)  # two spellings of one
    for given in ([one, other], [Subspace.from_bytes(part.to_bytes()) for part in (one, other)]):
        for merge in (merge_subspaces, FederatedPCA.from_subspaces):
            with pytest.raises(
                ValueError, match=rf"\[1\] is of site '{composed}', as is subspaces\[0\]"
            ):
                merge(given)
    twins = [table([name, "b", "c", "d"]) for name in ("Gr\u00f6\u00dfe", "Gro\u0308\u00dfe")]
    first, second = (Subspace.from_rows(twin).feature_names for twin in twins)
    assert first == second
    pca = FederatedPCA.from_subspaces([of_site("north", "south")])
    with pytest.raises(ValueError, match="is of site 'north'"):
        pca.partial_fit(rows(seed=5), clients=["north"] * 60)
    pca.partial_fit(rows(seed=5), clients=["west"] * 60)
    assert pca.subspace_.sites == ("north", "south", "west")


# controls, turned text, zero width, a soft hyphen, ends of lines, private use, selectors of
# variants, fillers, what is not assigned and not drawn, no characters, and half of one
UNSEEN = "\x00\n\x7f\u202e\u200b\u2066\ufeff\u00ad\u2028\ue000\ufe0f\u034f\u3164\u2065\U0001d159"
UNSEEN += "\U000e0fff\uffff\ud800"
LONG = ["n" * 501, "\u8840" * 167]  # 501 bytes


@pytest.mark.parametrize(
    "text", [*(f"no{c}rth" for c in UNSEEN), *LONG], ids=lambda t: ascii(t[:9])
)
def test_names_that_cannot_be_told_apart_by_eye_are_refused(text, tmp_path):
    with pytest.raises(ValueError, match=r"^site must") as error:
        named().save(tmp_path / "never", site=text)
    assert str(error.value).isprintable()
    with pytest.raises(ValueError, match=r"^feature_names must"):
        Subspace(**fields_of(named()), feature_names=(text, "b", "c", "d"))
    labels = {"feature_names": None, "site": None, "sites": [text]}
    with pytest.raises(ValueError, match=r"labels|sites must"):
        Subspace.from_bytes(relabelled(json.dumps(labels).encode(), n_sites=1))
    if "\ud800" not in text:
        model = StreamingPCA(2).fit(table([text, "b", "c", "d"]))  # harmless until it travels
        with pytest.raises(ValueError, match=r"^feature_names must"):
            model.subspace_.save(tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_marks_on_one_letter_take_no_time():
    """Composing them takes the square of their number: 200 KB that anybody sends were 20 s."""
    name, start = "a" + "\u0301\u0316" * 50_000, time.process_time()
    with pytest.raises(ValueError, match="feature_names must have at most 500 bytes"):
        check_names([name, "b"], 2)
    frame = pd.DataFrame(np.eye(2), columns=[name, "b"])
    assert StreamingPCA(1).fit(frame).subspace_.feature_names == (name, "b")
    assert time.process_time() - start < 1
    assert check_names(["a\u0301" * 250], 1) == ("\u00e1" * 250,)


# -------------------------------------------------------------------- what is stated of privacy


def private(**parameters):
    mechanism = AnalyzeGauss(2.0, 1e-5, 100.0, **parameters)
    return FederatedPCA(2, mechanism=mechanism, random_state=0)


@quiet
@pytest.mark.parametrize("trust", ["client", "sum"])
def test_a_file_made_with_a_mechanism_says_so(trust, tmp_path, capsys):
    path = str(tmp_path / "private.npz")
    pca = private(trust=trust).fit(rows(200), clients=np.arange(200) % 2)
    stated = pca.subspace_.privacy
    assert_allclose(stated[:3], (2.0, 1e-5, 100.0), rtol=1e-6)
    assert stated[:2] == pca.privacy_spent_
    assert stated[3:] == ("AnalyzeGauss", trust)
    pca.subspace_.save(path)
    assert Subspace.load(path).privacy == stated
    assert main(["inspect", path]) == 0
    shown = capsys.readouterr().out
    assert (
        f"privacy    epsilon 2, delta 1e-05, rows up to 100, AnalyzeGauss, trust: {trust}" in shown
    )


def test_a_merge_states_what_holds_for_every_row():
    strong = of_site("s0", privacy=(1.0, 1e-6, 3.0, "AnalyzeGauss", "client"))
    weak = of_site("s1", seed=1, privacy=(0.5, 1.0, 9.0, "ModSuLQ", "sum"))
    both = merge_subspaces([strong, weak])
    assert both.privacy == (1.0, 1.0, 9.0, "AnalyzeGauss, ModSuLQ", "client, sum")
    assert Subspace.from_bytes(both.to_bytes()).privacy == both.privacy
    assert merge_subspaces([both, of_site("plain")]).privacy is None
    assert strong.update(rows()).privacy is None, "rows that no mechanism has seen"
    assert strong.truncate(1).privacy == strong.decay(0.5).privacy == strong.privacy
    # a site that was left out has had its part in the choice
    merge = RobustMerge()
    liar = Subspace.from_rows(1e6 + 100 * rows(seed=9))._replace(site="liar")
    kept = merge.merge([strong, weak, liar], 2)
    assert list(merge.suspects_) == [2]
    assert kept.privacy is None


@quiet
def test_what_adds_to_a_release_adds_to_what_is_stated_or_is_refused():
    pca = private(n_releases=2)
    for seed in range(2):
        pca.partial_fit(rows(200, seed), clients=["a"] * 200)
    assert pca.subspace_.privacy[:2] == pca.privacy_spent_
    assert_allclose(pca.subspace_.privacy.epsilon, 2.0, rtol=1e-6)
    # products of the rows would be behind an epsilon that says nothing of them
    model = FederatedPCA.from_subspaces([pca.subspace_], 2)
    with pytest.raises(ValueError, match="must state no privacy to refine"):
        model.refine(rows(200))


@quiet
def test_what_is_not_private_states_no_epsilon():
    with pytest.warns(PrivacyLeakWarning):
        pca = FederatedPCA(2, mechanism=AnalyzeGauss(1.0, 1e-5, "data")).fit(rows(200))
    stated = Subspace.from_bytes(pca.subspace_.to_bytes()).privacy
    assert stated == (np.inf, 1e-5, None, "AnalyzeGauss", "client")
    assert FederatedPCA(2).fit(rows()).subspace_.privacy is None


# ---------------------------------------------------------------------------------- command line


def test_files_are_merged_and_described(files, tmp_path, capsys):
    (north, south), X = files
    model = str(tmp_path / "model.npz")
    assert main(["merge", north, south, "-o", model]) == 0
    merged = Subspace.load(model)
    assert_summarises(merged, X)
    assert (merged.site, merged.sites) == (None, ("north", "south"))
    s = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)
    share = np.cumsum(s**2) / np.sum(s**2)
    for n, count in (("2", 2), (str((share[1] + share[2]) / 2), 3)):
        assert main(["merge", north, south, "-o", str(tmp_path / f"{count}"), "-n", n]) == 0
        assert f"components {count}, float64" in capsys.readouterr().out
        found = Subspace.load(tmp_path / f"{count}").singular_values
        assert_allclose(found, s[:count], rtol=1e-10)
    assert main(["inspect", model, north]) == 0
    shown = capsys.readouterr().out
    for line in ("site       north", "rows       100", f"names      {', '.join(NAMES)}"):
        assert line in shown
    assert "sites      north, south" in shown
