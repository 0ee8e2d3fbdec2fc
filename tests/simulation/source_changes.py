"""Changes of the product's source that take a guard away, and the import hook that loads the changed source.

A change names a place (file and function, as pytest names tests) and a piece of code there, as in
`never("committers/protocol/recovery.py::Recovery.recover", "is_replayed")`. Pieces are compared as
`ast.unparse` writes them, so lines may move or wrap. A piece that is not there exactly once is a
`GuardNotFoundError`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]


class GuardNotFoundError(Exception):
    """The code that a change names is not there, or several times."""


@dataclass(frozen=True)
class SourceChange:
    """One change of one file.

    Args:
        place: file and qualified name of a function, a class or a variable of the module; or the file alone
        edit: changes the tree of this place
    """

    place: str
    edit: Callable[[ast.AST], None]

    @property
    def file(self) -> str:
        return self.place.partition("::")[0]

    def apply(self, module: ast.Module) -> None:
        """
        Raises:
            GuardNotFoundError: there is no such place or code.
        """
        scope: ast.AST = module
        for name in filter(None, self.place.partition("::")[2].split(".")):
            scope = _only([node for node in ast.iter_child_nodes(scope) if name in _names(node)], self.place)
        try:
            self.edit(scope)
        except GuardNotFoundError as error:
            raise GuardNotFoundError(f"{self.place}: {error}") from None


# What can be changed --------------------------------------------------------------------------------------


def never(place: str, condition: str) -> SourceChange:
    """The condition of an `if`, a `while` or a conditional expression is False.

    Args:
        condition: all of it, or a part that no other condition of the place has
    """
    return SourceChange(place, lambda scope: _set_condition(scope, condition, False))


def always(place: str, condition: str) -> SourceChange:
    """The condition is True; see `never`."""
    return SourceChange(place, lambda scope: _set_condition(scope, condition, True))


def without(place: str, piece: str) -> SourceChange:
    """A statement, an operand of `and` or `or`, an argument or an element is left out.

    Args:
        piece: of a statement, all or its beginning; else all of it
    """

    def edit(scope: ast.AST) -> None:
        spots = list(_spots(scope))
        parts = [spot for spot in spots if spot.position is not None and spot.text == piece]
        spot = _only(parts or _statements(spots, piece), piece)
        spot.set()
        if isinstance(spot.owner, ast.BoolOp) and len(spot.owner.values) == 1:
            _only([one for one in spots if one.node is spot.owner], piece).set(*spot.owner.values)

    return SourceChange(place, edit)


def instead(place: str, old: str, new: str) -> SourceChange:
    """An expression or a simple statement, all of it, becomes another one."""

    def edit(scope: ast.AST) -> None:
        replacement = ast.parse(new).body[0]
        is_expression = isinstance(replacement, ast.Expr)
        kind = ast.expr if is_expression else ast.stmt
        wanted = ast.unparse(ast.parse(old))
        found = [spot for spot in _spots(scope) if isinstance(spot.node, kind) and spot.text == wanted]
        _only([one for one in found if not isinstance(one.node, ast.Expr)], old).set(
            replacement.value if isinstance(replacement, ast.Expr) else replacement
        )

    return SourceChange(place, edit)


def entry(place: str, key: str, value: str) -> SourceChange:
    """The key of a dictionary has this value, whether it was there or not. The place is the dictionary's."""

    def edit(scope: ast.AST) -> None:
        table = next(node for node in ast.walk(scope) if isinstance(node, ast.Dict))
        keys = [one and ast.unparse(one) for one in table.keys]
        new_key, new_value = ast.parse(key, mode="eval").body, ast.parse(value, mode="eval").body
        if key in keys:
            table.values[keys.index(key)] = new_value
        else:
            table.keys.append(new_key)
            table.values.append(new_value)

    return SourceChange(place, edit)


def before(place: str, statement: str, new: str) -> SourceChange:
    """New statements come before the one that begins so."""

    def edit(scope: ast.AST) -> None:
        spot = _only(_statements(_spots(scope), statement), statement)
        spot.set(*ast.parse(new).body, spot.node)

    return SourceChange(place, edit)


def earlier(place: str, statement: str, *, than: str) -> SourceChange:
    """The statement that begins with the first piece moves before the one that begins with the second."""

    def edit(scope: ast.AST) -> None:
        moved = _only(_statements(_spots(scope), statement), statement)
        moved.set()
        spot = _only(_statements(_spots(scope), than), than)
        spot.set(moved.node, spot.node)

    return SourceChange(place, edit)


# How it is found ------------------------------------------------------------------------------------------


class _Spot(NamedTuple):
    """Where a node is."""

    node: Any
    owner: Any
    field: str
    position: int | None
    """In the owner's list; None for what the owner has one of."""

    @property
    def text(self) -> str:
        return ast.unparse(self.node)

    def set(self, *new: Any) -> None:
        """Put these into its place: exactly one where there is no list."""
        if self.position is None:
            (node,) = new
            setattr(self.owner, self.field, node)
            return
        nodes = getattr(self.owner, self.field)
        nodes[self.position : self.position + 1] = new
        if not nodes and isinstance(self.node, ast.stmt):
            nodes.append(ast.Pass())


def _spots(scope: ast.AST) -> Iterator[_Spot]:
    for owner in ast.walk(scope):
        for field, value in ast.iter_fields(owner):
            if isinstance(value, list):
                yield from (
                    _Spot(node, owner, field, i)
                    for i, node in enumerate(value)
                    if isinstance(node, (ast.expr, ast.stmt, ast.keyword))
                    and not isinstance(getattr(node, "ctx", None), ast.Store)
                )
            elif isinstance(value, ast.expr):
                yield _Spot(value, owner, field, None)


def _statements(spots: Any, piece: str) -> list[_Spot]:
    """Those that are the piece; if none is, those that begin so."""
    found = [spot for spot in spots if isinstance(spot.node, ast.stmt) and spot.text.startswith(piece)]
    return [spot for spot in found if spot.text == piece] or found


def _set_condition(scope: ast.AST, condition: str, value: bool) -> None:
    nodes = [node for node in ast.walk(scope) if isinstance(node, (ast.If, ast.While, ast.IfExp))]
    found = [node for node in nodes if condition in ast.unparse(node.test)]
    exact = [node for node in found if condition == ast.unparse(node.test)]
    _only(exact or found, condition).test = ast.Constant(value)


def _only(found: Sequence[Any], piece: str) -> Any:
    if len(found) != 1:
        raise GuardNotFoundError(f"there {len(found)} times: {piece}")
    return found[0]


def _names(node: ast.AST) -> list[str]:
    """What a definition or an assignment defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


# Loading --------------------------------------------------------------------------------------------------


class ChangedModules(MetaPathFinder):
    """Put first into `sys.meta_path`, it loads the changed files in place of the product's.

    Args:
        changes: of modules that nobody has imported yet
    """

    def __init__(self, changes: Sequence[SourceChange]) -> None:
        self._changes = changes

    @property
    def files(self) -> Mapping[str, str]:
        """By module."""
        files = dict.fromkeys(change.file for change in self._changes)
        return {"penstock." + file.removesuffix(".py").replace("/", "."): file for file in files}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        file = self.files.get(fullname)
        if file is None:
            return None
        loader = _ChangedLoader(fullname, str(ROOT / file), lambda: self.code(file))
        return spec_from_file_location(fullname, loader.path, loader=loader)

    def code(self, file: str) -> CodeType:
        """
        Raises:
            GuardNotFoundError: a change of the file does not fit.
        """
        return compile(self.tree(file), str(ROOT / file), "exec", dont_inherit=True)

    def tree(self, file: str) -> ast.Module:
        tree = ast.parse((ROOT / file).read_text())
        for change in self._changes:
            if change.file == file:
                change.apply(tree)
        return ast.fix_missing_locations(tree)


class _ChangedLoader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, code: Callable[[], CodeType]) -> None:
        super().__init__(fullname, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:
        return self._code()
