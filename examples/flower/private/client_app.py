"""A private site: its share of scikit-learn's digits, the owner's rules, a ledger and a log."""

import os
from pathlib import Path

from sklearn.datasets import load_digits

from fedpca_sklearn import AnalyzeGauss, FederatedPCA
from fedpca_sklearn.engines.flower import SitePolicy, client_app

# Where the site keeps its ledger and its log; put here a folder of yours.
FOLDER = Path(os.environ["SITE_FOLDER"])
# What a fit costs, which the server's estimator has to state too: pixels are from 0 to 16.
PRIVATE = AnalyzeGauss(epsilon=4.0, delta=1e-5, row_norm=50, center=5.0)


def load_rows(context):
    """Rows of this site; put here what reads yours."""
    part, n_parts = context.node_config["part"], context.node_config["parts"]
    return load_digits().data[part::n_parts]


policy = SitePolicy(
    estimators=FederatedPCA,
    min_rows=100,
    max_queries_per_day=10,
    mechanism=AnalyzeGauss(epsilon=4.0, delta=1e-5, row_norm=50),  # for all fits together
    ledger=FOLDER / "site.ledger",
    log=FOLDER / "site.log",
)
app = client_app(load_rows, FederatedPCA(5, mechanism=PRIVATE), policy=policy)
