"""The server: principal components of the digits at all sites, from secure sums, into a file."""

from fedpca_sklearn import FederatedPCA
from fedpca_sklearn.engines.flower import SecureAggregation, server_app


def save(pca, context):
    """Write the result, and say who took part."""
    pca.subspace_.truncate(pca.n_components_).save(context.run_config["output"])
    print(f"{pca.n_samples_} rows at {pca.clients_}, without {pca.missing_sites_}")
    print(f"explained: {pca.explained_variance_ratio_.sum():.4f}")


secure = SecureAggregation(threshold=2)
app = server_app(FederatedPCA(10), save, min_sites=3, wait=60, timeout=120, secure=secure)
