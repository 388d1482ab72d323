"""Sphinx's settings: pages in Markdown, API from docstrings, gallery from examples/."""

import re

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.transforms import SphinxTransform

import fedpca_sklearn

project = "fedpca_sklearn"
author = "The fedpca_sklearn developers"
copyright = author
version = release = fedpca_sklearn.__version__

extensions = [
    "matplotlib.sphinxext.plot_directive",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # formulas without a network
    "sphinx.ext.viewcode",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "sg_execution_times.rst", "**/sg_execution_times.rst"]
default_role = "py:obj"
rst_prolog = ".. py:currentmodule:: fedpca_sklearn\n\n"
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_fence_as_directive = ["math"]  # as GitHub has it
myst_heading_anchors = 3

# What scikit-learn's bases and Python's exceptions add is theirs to document.
autodoc_default_options = {
    "members": True,
    "inherited-members": "BaseEstimator, BaseException",
    "exclude-members": "get_feature_names_out, get_metadata_routing, set_callbacks, "
    "set_fit_request, set_inverse_transform_request, set_output, set_partial_fit_request, "
    "set_params, set_score_request, set_transform_request",
}
toc_object_entries_show_parents = "hide"
autodoc_mock_imports = ["cryptography", "flwr"]
autodoc_typehints = "none"
numpydoc_show_class_members = False

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "subsection_order": [  # "*": sections that are new
        "../examples/getting_started",
        "../examples/sites",
        "../examples/streams",
        "../examples/missing_and_outliers",
        "../examples/columns",
        "../examples/privacy",
        "../examples/tools",
        "*",
    ],
    "filename_pattern": "plot_",
    "abort_on_example_error": True,
    "backreferences_dir": "generated/examples",
    "doc_module": ("fedpca_sklearn",),
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
}

# Figures of the guide are drawn by the build, from guide/figures/*.py.
plot_formats = ["svg"]
plot_html_show_formats = False
plot_html_show_source_link = False

# What pages link to; written down here, so that the pages are built without a network.
intersphinx_mapping = {
    "joblib": ("https://joblib.readthedocs.io/en/stable/", "_inventories/joblib.inv"),
    "numpy": ("https://numpy.org/doc/stable/", "_inventories/numpy.inv"),
    "scipy": ("https://docs.scipy.org/doc/scipy/", "_inventories/scipy.inv"),
    "sklearn": ("https://scikit-learn.org/stable/", "_inventories/scikit-learn.inv"),
}

html_theme = "pydata_sphinx_theme"
html_title = "fedpca_sklearn"
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_sidebars = {"changelog": [], "choosing": [], "extending": [], "index": []}
html_theme_options = {
    "logo": {"text": f"fedpca_sklearn {version}"},
    "header_links_before_dropdown": 7,
    "navigation_with_keys": False,
    "secondary_sidebar_items": {"**": ["page-toc"], "choosing": [], "index": []},
    "show_toc_level": 2,
}


class LinkNames(SphinxTransform):
    """Inline literals of pages that are a public name, its method or a call link to its page."""

    default_priority = 500
    module = dict.fromkeys(fedpca_sklearn.base.__all__, "fedpca_sklearn.base")
    module |= dict.fromkeys(fedpca_sklearn.__all__, "fedpca_sklearn")
    module |= dict.fromkeys(
        ("IncrementalPCA", "KernelPCA", "PCA", "TruncatedSVD"), "sklearn.decomposition"
    )
    module |= {
        "ColumnTransformer": "sklearn.compose",
        "GridSearchCV": "sklearn.model_selection",
        "Pipeline": "sklearn.pipeline",
        "StandardScaler": "sklearn.preprocessing",
    }
    name = re.compile(rf"(({'|'.join(module)})(?:\.\w+)?)(\(.*\))?", re.DOTALL)

    def apply(self):
        """Wrap the literals of a page; docstrings have links of their own."""
        if self.env.docname.startswith(("generated/", "auto_examples/")):
            return
        for literal in list(self.document.findall(nodes.literal)):
            found = self.name.fullmatch(literal.astext())
            if found and not isinstance(literal.parent, nodes.reference | pending_xref):
                target = f"{self.module[found[2]]}.{found[1]}"
                link = pending_xref("", refdomain="py", reftype="obj", reftarget=target)
                literal.replace_self(link)
                link += literal


def plain_text(app, what, name, obj, options, lines):
    """Escape what is not markup in docstrings: ``components_`` and ``|x|`` outside literals."""
    raw = re.compile(r"(``.+?``|`[^`]+`|^ *(?:>>>|\.\.\. )[^\n]*)", re.MULTILINE | re.DOTALL)
    parts = raw.split("\n".join(lines))
    parts[::2] = [re.sub(r"\||(?<=\w)_(?!\w)", r"\\\g<0>", part) for part in parts[::2]]
    lines[:] = "".join(parts).split("\n")


def what_a_subclass_writes(app, what, name, obj, skip, options):
    """Show the abstract methods of a base, also those that begin with an underscore."""
    return False if getattr(obj, "__isabstractmethod__", False) else None


def headers_are_rst(app):
    """Keep a folder with a README.md, such as examples/flower, out of the gallery."""
    app.config.sphinx_gallery_conf["source_suffix"] = {".rst": None}


def setup(app):
    """Add what is above to Sphinx."""
    app.add_transform(LinkNames)
    app.connect("autodoc-process-docstring", plain_text, priority=900)
    app.connect("autodoc-skip-member", what_a_subclass_writes)
    app.connect("builder-inited", headers_are_rst, priority=100)
