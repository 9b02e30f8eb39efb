"""transformers' private functions moved between 5.12 and 5.23, so one module alone may reach for them."""

import ast
from importlib import import_module
from pathlib import Path

import flywheel

ROOT = Path(flywheel.__file__).parent


def imports_of(file: Path) -> list[tuple[str, str]]:
    """(module, name) of everything imported from transformers, wherever in the file."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "transformers":
            found += [(str(node.module), alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "transformers"]
    return found


def test_only_documented_names_are_imported() -> None:
    found = {file: imports_of(file) for file in ROOT.rglob("*.py")}
    used = {file.relative_to(ROOT).as_posix(): names for file, names in found.items() if names}
    assert {"modeling/qwen.py", "modeling/processor.py"} <= used.keys()
    assert all(file.startswith("modeling/") for file in used)
    for file, names in used.items():
        for module, name in names:
            assert module == "transformers", f"{file} imports {name} from {module}"
            # `vision_utils` says in its own docstring that models take what it computes; only one module relies on it.
            assert name != "vision_utils" or file == "modeling/qwen.py"
            assert hasattr(import_module(module), name)


def test_private_attributes_of_models_are_touched_in_one_module() -> None:
    touched = [file for file in ROOT.rglob("*.py") if "_attn_implementation" in file.read_text()]
    assert [file.relative_to(ROOT).as_posix() for file in touched] == ["modeling/qwen.py"]
