"""The server: private principal components of the digits at all sites, into a file."""

from fedpca_sklearn import AnalyzeGauss, FederatedPCA
from fedpca_sklearn.engines.flower import server_app


def save(pca, context):
    """Write the result, and say who took part and what it cost."""
    print("epsilon = {:.3f}, delta = {:g}, in".format(*pca.privacy_spent_), end=" ")
    print(pca.privacy_spent_.account)
    pca.subspace_.truncate(pca.n_components_).save(context.run_config["output"])


private = AnalyzeGauss(epsilon=4.0, delta=1e-5, row_norm=50, center=5.0)
app = server_app(FederatedPCA(5, mechanism=private), save, min_sites=2, wait=60, timeout=60)
