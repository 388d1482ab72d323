"""Sites that take part in secure sums, and a server that asks each of them what it likes."""

import numpy as np
from engines.site_helpers import ROWS, SECURE, Site, assert_refused, made
from flwr.supercore.primitives.asymmetric import (
    generate_key_pairs,
    private_key_to_bytes,
    public_key_to_bytes,
)

from fedpca_sklearn.engines._messages import arrays_of
from fedpca_sklearn.engines._secure import Bounds, grids_of_sums
from fedpca_sklearn.engines._secure_sum import mask, question_of, recovered, session_of

BITS = 50


def pem_pair():
    """Secret and public key of an owner."""
    secret, public = generate_key_pairs()
    return private_key_to_bytes(secret), public_key_to_bytes(public)


# what a site sends about the question "moments": the sums of eight columns, their number, a zero
N = 10


class Server:
    """Sites, and a server that asks each of them what it likes."""

    def __init__(self, n=3, secure=SECURE, estimator=None, rows=ROWS):
        estimator = made("FederatedPCA(3)") if estimator is None else estimator
        each = secure if isinstance(secure, list) else [secure] * n
        self.sites = [Site(estimator, rows[i::n], secure=each[i]) for i in range(n)]
        self.threshold = each[0].needed(n)

    def tell(self, i, kind, *arguments, **config):
        """What site i answers: its configuration and its arrays."""
        said = {**self.sites[i].stated, "nonce": "once", **config}
        return self.sites[i].ask(kind, *arguments, config=said)

    def keys(self, begin=True):
        if begin:  # a fit, with what the sites announce
            told = [self.tell(i, "bounds")[1]["bounds"] for i in range(len(self.sites))]
            self.bounds = [bounds.astype("<f8").tobytes() for bounds in told]
        told = [self.tell(i, "secure_keys")[0] for i in range(len(self.sites))]
        self.mask_keys = [config["mask_key"] for config in told]
        self.box_keys = [config["box_key"] for config in told]
        return self

    def lists(self, **changes):
        """What the server says in the second question."""
        config = {"mask_keys": self.mask_keys, "box_keys": self.box_keys, "bounds": self.bounds}
        return {**config, "threshold": self.threshold, **changes}

    def shares(self):
        told = [self.tell(i, "secure_shares", **self.lists())[0] for i in range(len(self.sites))]
        self.boxes = [config["boxes"] for config in told]
        self.signatures = [config.get("signature", b"") for config in told]
        return self

    def question(self, i, **changes):
        """What the server says in the third question."""
        boxes = [own[i] for own in self.boxes]
        return {"boxes": boxes, "bits": BITS, "signatures": self.signatures, **changes}

    def masked(self):
        sites = range(len(self.sites))
        self.numbers = [self.tell(i, "moments", **self.question(i))[1]["masked"] for i in sites]
        return self

    def refused(self, i, kind, *arguments, why, **config):
        """Nothing comes back but the reason."""
        said = {**self.sites[i].stated, "nonce": "once", **config}
        assert_refused(self.sites[i], kind, *arguments, why=why, config=said)

    def forget(self):
        """Begin another run as far as the counts of the sites are concerned."""
        for site in self.sites:
            site.context.state["fedpca_sklearn"]["run"] = 0

    def question_digest(self):
        session = session_of(self.threshold, self.mask_keys, self.box_keys, self.bounds)
        return question_of(session, "moments", BITS, {})

    def unmasked_total(self, numbers, kind, arguments):
        """The integers of a sum, as all sites help to unmask it."""
        n, given = len(self.sites), enumerate(arguments)
        record = arrays_of({str(i): np.asarray(a, float) for i, a in given})
        session = session_of(self.threshold, self.mask_keys, self.box_keys, self.bounds)
        question, sent = question_of(session, kind, BITS, record), list(range(n))
        shares = [self.tell(i, "secure_unmask", sent=sent)[0]["shares"] for i in sent]
        total = np.add.reduce(numbers)
        for owner in sent:
            total -= mask(recovered([s[owner] for s in shares]), question, len(total))
        return total.tolist()

    def own_numbers(self, rows):
        """The integers that a site masks, and the zero."""
        bounds = Bounds.of_all(self.bounds)
        grids, numbers = grids_of_sums(bounds), {"count": [len(rows)], "sum": rows.sum(axis=0)}
        asked, words = question_of(b"", "moments", BITS, {}), []
        for name, values in numbers.items():
            how = BITS, len(self.mask_keys), asked + name.encode()
            words.append(grids[name].encode(values, *how))
        return np.concatenate([*words, np.zeros(1, np.uint64)])


def are_near(words, others):
    """Whether integers differ by what roundings of four sites can make."""
    return np.abs((np.asarray(words) - others).view(np.int64)).max() <= 8
