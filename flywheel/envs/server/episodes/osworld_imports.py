"""Imports desktop-env without what most tasks never use, and without what an agent could turn against the server.

`desktop_env.evaluators.metrics` and `.getters` import librosa, OpenCV, scikit-image, PyMuPDF and two dozen others:
three seconds a worker. Here each of their modules is imported when one of its functions is first asked for.
"""

import ast
import importlib
import importlib.util
import sys
import tarfile
from pathlib import Path
from typing import Any

_SAFER: dict[str, dict[str, Any]] = {
    # An agent can set what `gsettings` prints, and this module evaluates it as Python.
    "desktop_env.evaluators.metrics.basic_os": {"eval": ast.literal_eval},
}


def import_desktop_env() -> Any:
    """The module `desktop_env.desktop_env`; half a second instead of three."""
    # Archives that an agent made are unpacked by metrics: no absolute paths, no links out (Python 3.11.4 and later).
    tarfile.TarFile.extraction_filter = staticmethod(tarfile.data_filter)  # type: ignore[assignment]
    for name in ("desktop_env.evaluators.metrics", "desktop_env.evaluators.getters"):
        if name not in sys.modules:
            _import_lazily(name)
    module = importlib.import_module("desktop_env.desktop_env")
    # Comparing addresses would fetch the list of public suffixes from the web; one comes with the package.
    tldextract = importlib.import_module("tldextract.tldextract")
    vars(tldextract)["TLD_EXTRACTOR"] = tldextract.TLDExtract(suffix_list_urls=())
    return module


def _import_lazily(name: str) -> None:
    """Run a package's own statements except `from .module import names`; those names are looked up when asked for."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    own = [node for node in tree.body if not (isinstance(node, ast.ImportFrom) and node.level == 1)]
    homes = {
        alias.asname or alias.name: (str(node.module), alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.level == 1
        for alias in node.names
    }
    module = importlib.util.module_from_spec(spec)

    def look_up(attribute: str) -> Any:
        if attribute not in homes:
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
        home, original = homes[attribute]
        found = importlib.import_module(f"{name}.{home}")
        vars(found).update(_SAFER.get(found.__name__, {}))
        setattr(module, attribute, getattr(found, original))
        return getattr(found, original)

    vars(module)["__getattr__"] = look_up
    sys.modules[name] = module
    exec(compile(ast.Module(own, []), spec.origin, "exec"), vars(module))
    parent, _, last = name.rpartition(".")
    setattr(sys.modules[parent], last, module)
