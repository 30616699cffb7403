"""Classes made by `engine.startup.dataclass` behave like those of the standard library, which makes the same here."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import sys
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from engine.startup import dataclass

T = TypeVar("T")
Decorator = Callable[..., Any]
MAKERS = pytest.mark.parametrize("maker", [dataclasses.dataclass, dataclass], ids=["standard", "engine"])


def plain(maker: Decorator, **options: Any) -> Any:
    @maker(**options)
    class Point:
        """A point."""

        x: int
        y: float = 2.5
        tags: list[str] = field(default_factory=list, compare=False)
        size: int = field(init=False, default=7, repr=False)
        kind: ClassVar[str] = "point"

        def norm(self) -> float:
            return self.x + self.y

    return Point


def observed(make: Callable[[], object]) -> object:
    """What a call gives: a value, or the class of the error."""
    try:
        return make()
    except Exception as e:
        return type(e)


OPTIONS = [
    {},
    {"slots": True},
    {"frozen": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "kw_only": True},
    {"frozen": True, "slots": True, "eq": False},
    {"slots": True, "eq": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_instances_are_as_those_of_the_standard_library(options: dict[str, Any]) -> None:
    seen = []
    for maker in (dataclasses.dataclass, dataclass):
        cls = plain(maker, **options)
        first, equal, other = cls(x=1), cls(x=1, tags=["a"]), cls(x=2)
        seen.append((
            repr(first), first == equal, first == other, first != other, first == (1, 2.5),
            observed(lambda first=first, equal=equal: hash(first) == hash(equal)),
            observed(lambda cls=cls: cls(1).x), observed(cls), observed(lambda cls=cls: cls(1, 2.0, [], 3)),
            observed(lambda first=first: setattr(first, "x", 5)), observed(lambda other=other: delattr(other, "y")),
            first.size, first.norm(), cls.kind,
            hasattr(first, "__dict__"), cls.__match_args__, cls.__doc__, cls.__qualname__,
            getattr(cls, "__slots__", None), str(inspect.signature(cls)), typing.get_type_hints(cls.__init__),
            dataclasses.asdict(first), dataclasses.replace(first, x=9).x, dataclasses.is_dataclass(first),
            [(each.name, each.type, each.kw_only) for each in dataclasses.fields(cls)],
            "y" in vars(cls), copy.copy(first).x, copy.deepcopy(equal).tags,
        ))  # fmt: skip
    assert seen[0] == seen[1]


@dataclass(frozen=True, slots=True)
class Base:
    """A base."""

    x: int
    y: tuple[int, ...] = ()

    def area(self) -> int:
        """The area."""
        return self.x

    @classmethod
    def made(cls) -> Base:
        """An instance."""
        return cls(1)


@dataclass(frozen=True, slots=True)
class Derived(Base):
    """A derived class."""

    z: str = "z"

    def __post_init__(self) -> None:
        if not self.z:
            raise ValueError("empty")

    def area(self) -> int:
        """The area, of the base and more."""
        return super().area() + 1

    @classmethod
    def made(cls) -> Base:
        """An instance."""
        return super().made()


def test_a_class_that_derives_from_another() -> None:
    made = Derived(1, (2,), "a")
    assert repr(made) == "Derived(x=1, y=(2,), z='a')"
    assert made.area() == 2
    assert Derived.made() == Derived(1)
    assert not hasattr(made, "__dict__")
    assert Derived.__slots__ == ("z",)  # type: ignore[attr-defined]
    assert Base(1) != Derived(1)
    with pytest.raises(ValueError, match="empty"):
        Derived(1, z="")
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
        made.x = 2  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(made)) == made
    if sys.version_info >= (3, 13):
        assert copy.replace(made, x=5) == Derived(5, (2,), "a")


@MAKERS
def test_classes_of_users_derive_from_the_engines(maker: Decorator) -> None:
    """A pass or a plugin of a user may use either decorator."""

    @maker(frozen=True, slots=True)
    class Own(Base):
        """A class of a user."""

        w: int = 4

    assert repr(Own(1)).endswith("Own(x=1, y=(), w=4)")
    assert Own(1) == Own(1) != Own(2)
    assert hash(Own(1)) == hash(Own(1))
    with pytest.raises(FrozenInstanceError):
        Own(1).w = 2


@pytest.mark.parametrize("frozen", [False, True])
def test_frozen_and_other_classes_do_not_derive_from_each_other(frozen: bool) -> None:
    @dataclass(frozen=not frozen)
    class Other:
        """A base."""

        x: int

    with pytest.raises(TypeError, match="both are frozen, or neither"):

        @dataclass(frozen=frozen)
        class _Wrong(Other):  # type: ignore[misc, unused-ignore]
            """A derived class."""


def test_a_plain_subclass_may_have_more_attributes() -> None:
    class Plain(Base):
        pass

    made = Plain(1)
    made.more = 2  # type: ignore[attr-defined]
    assert made.more == 2  # type: ignore[attr-defined]
    with pytest.raises(FrozenInstanceError):
        made.x = 3  # type: ignore[misc]


def test_signatures_are_those_of_constructors() -> None:
    """Which are compiled only when they are first called."""

    @dataclass(frozen=True)
    class Own:
        """A class."""

        x: int
        tags: list[str] = field(default_factory=list)

    class Heir(Own):
        pass

    class Other(Own):
        def __init__(self, y: int) -> None:
            super().__init__(y)

    signature = "(x: 'int', tags: 'list[str]' = <factory>) -> None"
    assert str(inspect.signature(Heir)) == signature
    assert str(inspect.signature(Other)) == "(y: 'int') -> 'None'"
    assert Other(4).x == 4
    assert str(inspect.signature(Own)) == str(inspect.signature(Heir)) == signature
    with pytest.raises(TypeError, match=r"Own.__init__\(\) missing 1 required positional argument: 'x'"):
        Own()  # type: ignore[call-arg]


def test_methods_of_the_class_are_kept() -> None:
    @dataclass(frozen=True, slots=True)
    class Own:
        """A class with methods that the decorator would add."""

        x: int

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 5

        def __init__(self) -> None:
            object.__setattr__(self, "x", 3)

    assert repr(Own()) == "own"
    assert Own() == 7
    assert hash(Own()) == 5
    assert Own().x == 3


def test_abstract_and_generic_classes() -> None:
    @dataclass(frozen=True, slots=True)
    class Shape(ABC, Generic[T]):
        """An abstract class."""

        x: T

        @abstractmethod
        def area(self) -> int:
            """The area."""

    @dataclass(frozen=True, slots=True)
    class Square(Shape[int]):
        """A class with a value."""

        def area(self) -> int:
            return self.x**2

    with pytest.raises(TypeError, match="abstract"):
        Shape(1)  # type: ignore[abstract]
    assert Square(3).area() == 9


def test_a_value_that_contains_itself_can_be_shown() -> None:
    @dataclass(slots=True)
    class Node:
        """A node."""

        to: list[Any] = field(default_factory=list)

    node = Node()
    node.to.append(node)
    assert repr(node).endswith("Node(to=[...])")


def test_what_is_not_supported_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Wrong.x: .*InitVar.* is not supported"):

        @dataclass
        class Wrong:
            """A class with an argument that is not a field."""

            x: dataclasses.InitVar[int]


@MAKERS
def test_a_default_that_all_instances_would_share_is_refused(maker: Any) -> None:
    with pytest.raises(ValueError, match="mutable"):

        @maker()
        class _Wrong:
            tags: list[str] = []


@MAKERS
def test_a_method_that_a_program_has_wrapped_stays_wrapped(maker: Any) -> None:
    """Tracers and mocks replace methods before they are first called."""

    @maker(frozen=True, slots=True)
    class Point:
        x: int

    calls, original = [], Point.__init__

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        calls.append(args)
        original(self, *args, **kwargs)

    Point.__init__ = wrapped
    assert [Point(1).x, Point(2).x] == [1, 2]
    assert calls == [(1,), (2,)]


@MAKERS
def test_a_field_that_is_declared_again_keeps_its_default(maker: Any) -> None:
    @maker()
    class Base:
        x: int = 3

    @maker()
    class Derived(Base):
        x: int

    assert Derived().x == 3
