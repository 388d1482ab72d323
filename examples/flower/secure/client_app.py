"""A site whose numbers the server sees only in the sum of all sites."""

from sklearn.datasets import load_digits

from fedpca_sklearn import FederatedPCA
from fedpca_sklearn.engines.flower import SecureAggregation, client_app

# 1,797 images with entries up to 16: no sum of products is larger, and all may know
SECURE = SecureAggregation(threshold=2)


def load_rows(context):
    """Rows of this site; put here what reads yours."""
    part, n_parts = context.node_config["part"], context.node_config["parts"]
    return load_digits().data[part::n_parts]


app = client_app(load_rows, FederatedPCA(10), secure=SECURE)
