"""The package as an installation sees it: cost of importing, dependencies, Python, documents."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cute_fa4

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10; pytest depends on it there
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = sorted((ROOT / "cute_fa4").rglob("*.py"))

# Import names of distributions with a different name.
DISTRIBUTION_OF = {
    "cutlass": "nvidia-cutlass-dsl",
    "nvidia_cutlass_dsl": "nvidia-cutlass-dsl",
    "cuda": "cuda-python",
    "tvm_ffi": "apache-tvm-ffi",
}


def test_importing_the_package_imports_neither_torch_nor_the_compiler():
    program = (
        "import sys, cute_fa4\n"
        "heavy = {'torch', 'cutlass', 'numpy', 'tvm_ffi'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "cute_fa4.capabilities()\n"
        "assert 'cutlass' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_every_public_name_resolves_and_no_other_does():
    for name in cute_fa4.__all__:
        assert getattr(cute_fa4, name) is not None
        assert name in dir(cute_fa4)
    with pytest.raises(AttributeError, match="no attribute 'flash_attention'"):
        _ = cute_fa4.flash_attention


def test_public_names_are_not_shadowed_by_modules_of_the_same_name():
    modules = {path.stem for path in (ROOT / "cute_fa4").iterdir()}
    assert not modules & set(cute_fa4.__all__)


def imported_modules(path: Path) -> set[str]:
    """Top-level names of everything a file imports, nested imports too; relative ones left out."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module.split(".")[0])
    return names


# Packages that a module answers for a program that has imported them; without such a program it imports none.
OF_PROGRAMS = {"triton_driver.py": {"triton"}, "triton_names.py": {"triton"}}


def test_every_import_is_a_declared_dependency():
    declared = distributions(PROJECT["dependencies"])
    for path in SOURCES:
        foreign = imported_modules(path) - set(sys.stdlib_module_names) - {"cute_fa4"}
        needed = {DISTRIBUTION_OF.get(name, name) for name in foreign}
        if (
            path.parent.name == "integrations"
        ):  # transformers_masks.py may import the extra transformers
            extra = path.stem.partition("_")[0]
            needed -= distributions(PROJECT["optional-dependencies"].get(extra, []))
        needed -= OF_PROGRAMS.get(path.name, set())
        assert needed <= declared, f"{path.relative_to(ROOT)} imports {needed - declared}"


def distributions(requirements: list[str]) -> set[str]:
    return {re.match(r"[\w.-]+", text).group() for text in requirements}


def test_every_dependency_says_why_it_is_there():
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    for dependency in PROJECT["dependencies"]:
        [line] = [i for i, text in enumerate(lines) if text == f'  "{dependency}",']
        assert lines[line - 1].startswith("  # "), dependency


def test_sources_parse_as_the_oldest_supported_python():
    assert PROJECT["requires-python"] == ">=3.10,<3.14"
    for path in SOURCES:
        ast.parse(path.read_text(), filename=str(path), feature_version=(3, 10))


def test_the_changelog_has_the_version_or_an_unreleased_section():
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", cute_fa4.__version__)
    changelog = (ROOT / "CHANGELOG.md").read_text()
    heading = "Unreleased" if ".dev" in cute_fa4.__version__ else cute_fa4.__version__
    assert f"\n## [{heading}]" in changelog


def test_generated_documents_are_up_to_date():
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
