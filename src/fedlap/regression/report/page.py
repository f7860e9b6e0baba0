"""The page: all sections of a report in one file."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedlap import files
from fedlap.errors import ConfigError, nearest
from fedlap.regression.fit import SitesFit
from fedlap.regression.report import conduct, findings
from fedlap.regression.report.assessment import Assessment, Unassessed
from fedlap.regression.report.markup import document
from fedlap.regression.report.words import subject


def write_report(
    fit: SitesFit,
    path: files.PathLike,
    *,
    title: str = "Regression over sites",
    facts: Mapping[str, Any],
    assessment: Assessment | Unassessed | None = None,
) -> Path:
    """Write the report of a fit as one HTML file, and say where it is.

    `facts` is what the fit does not know: "date", "by" and whatever else is to stand at the top; "sites", a mapping
    of sites to "rows", "missing", "events" or "mean"; "options" of the fit, for the digest, or a "digest" itself.
    """
    content = page(fit, title=title, facts=facts, assessment=assessment)
    files.write(path, content)
    return Path(path)


def page(
    fit: SitesFit, *, title: str, facts: Mapping[str, Any], assessment: Assessment | Unassessed | None = None
) -> str:
    """The report as a text."""
    said = dict(facts)
    of_sites = _of_sites(fit, said.pop("sites", {}))
    options = said.pop("options", {})
    mark = str(said.pop("digest", None) or digest(fit, options))
    of, found = subject(fit), conduct.contributions(fit)
    sections = {
        "What was fitted": findings.what(fit, of, said),
        "The sites": findings.sites(fit, of_sites),
        "Coefficients": findings.coefficients(fit, of),
        "Sites beside each other": findings.forests(fit, of),
        "Pooled against meta-analysis": findings.against_meta(fit),
        "Convergence": conduct.convergence(fit),
        "Predictions for rows held out": conduct.assessed(assessment, of),
        "Who matters": conduct.who_matters(fit, found, fit.shapley().to_dict()),
        "What left each site": conduct.what_left(fit, found, assessment),
        "Versions and digest": conduct.versions(mark),
    }
    return document(title, fit.title, sections)


def _of_sites(fit: SitesFit, said: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """What was said of sites that the fit has; an error for others."""
    sites = list(fit.regression.rows)
    for name in said:
        if name not in sites:
            near = nearest(str(name), sites)
            hint = f"did you mean {near!r}?" if near else f"expected one of {', '.join(sites)}"
            raise ConfigError(f"facts: no site of the fit is named {name!r}; {hint}")
    return said


def digest(fit: SitesFit, options: Mapping[str, Any]) -> str:
    """SHA-256 of what was asked: formula, family, options, and the sites with their numbers of rows."""
    of = subject(fit)
    asked = {"formula": of.formula, "family": of.family, "options": options, "sites": dict(fit.regression.rows)}
    try:
        text = json.dumps(asked, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"facts: options are {options!r} ({error}); expected what JSON can hold") from error
    return hashlib.sha256(text.encode()).hexdigest()
