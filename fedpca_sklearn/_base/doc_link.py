"""Link from an estimator's HTML display to its page of the documentation."""

from __future__ import annotations

# Base address of the built pages, such as "https://docs.example.org/fedpca". None: there is no
# public address yet, and displays show no link.
DOCUMENTATION: str | None = None


class DocLinkMixin:
    """Link from scikit-learn's displays of an estimator to its page."""

    _doc_link_module = "fedpca_sklearn"

    @property
    def _doc_link_template(self) -> str:
        if DOCUMENTATION is None:
            return ""
        # where the tables of contents of docs/api.md put the pages
        return DOCUMENTATION.rstrip("/") + "/generated/fedpca_sklearn.{estimator_name}.html"
