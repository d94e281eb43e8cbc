"""The compiler that is never used: Triton's interpreter runs a kernel's Python."""

from types import ModuleType
from typing import Any, NoReturn

from triton.backends import compiler


def _refuse() -> NoReturn:
    raise RuntimeError("this backend only interprets: set TRITON_INTERPRET=1")


class InterpretedCompiler(compiler.BaseBackend):  # type: ignore[misc]
    """Refuses to compile."""

    @staticmethod
    def supports_target(target: Any) -> bool:
        """Claim only the interpreter's own target."""
        return bool(target.backend == "cpu")

    def hash(self) -> str:
        """Name the backend in caches, of which it has none."""
        return "interpreter"

    def parse_options(self, options: dict[str, Any]) -> object:
        """Refuse."""
        _refuse()

    def add_stages(self, stages: dict[str, Any], options: object) -> None:
        """Refuse."""
        _refuse()

    def load_dialects(self, context: Any) -> None:
        """Refuse."""
        _refuse()

    def get_module_map(self) -> dict[str, ModuleType]:
        """Have no modules of its own."""
        return {}
