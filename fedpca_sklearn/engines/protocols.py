"""What estimators and carriers of one's own are made of, that have each other for free.

An estimator over a network has two methods. ``site_tasks()`` says what a site answers to each kind
of question, and ``fit_over(sites)`` asks by ``sites.sum(kind, shapes, *arguments)`` and fits. It
then works in one process (`SumsInProcess`), over Flower, by files and, where its tasks have bounds,
by secure sums over both. A carrier delivers messages, and knows no estimator.
"""

from ._apps import SiteApp, Wanted, fit_over
from ._letters import Letter
from ._questions import Given, RefusedError, Task
from ._records import Carrier, Context, Message
from ._secure import SecureAggregation
from ._site_policy import SitePolicy
from ._sums_in_process import SumsInProcess

__all__ = [
    "Carrier",
    "Context",
    "Given",
    "Letter",
    "Message",
    "RefusedError",
    "SecureAggregation",
    "SiteApp",
    "SitePolicy",
    "SumsInProcess",
    "Task",
    "Wanted",
    "fit_over",
]
