"""Values that are no plain data: what a bare run says of a test that uses them, and the verdict where only calls cross."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

import aviato
from aviato.rl import Outcome, Task
from tests.matrices import every
from tests.verdicts.test_as_a_module import Row

ROWS = {
    "a generator": Row("def f(n):\n  yield from range(n)", "assert list(f(3)) == [0,1,2]"),
    "a generator that is wrong": Row("def f(n):\n  yield from range(n+1)", "assert list(f(3)) == [0,1,2]", passes=False),
    "a generator in a comprehension": Row("def f(n):\n  yield from range(n)", "assert [x for x in f(30)] == list(range(30))"),
    "next of a generator without end": Row(
        "def f(n):\n  while True:\n    yield n; n+=1", "g=f(3)\nassert next(g)==3 and next(g)==4"
    ),
    "a generator that is compared with a list": Row("def f(n):\n  yield 1", "assert f(3) == [1]", passes=False),
    "a slice of one without end": Row(
        "def f(n):\n  while True:\n    yield n; n+=1",
        "import itertools\nassert list(itertools.islice(f(1),100))==list(range(1,101))",
    ),
    "a generator that raises": Row(
        "def f(n):\n  yield 1\n  raise ValueError('x')",
        "g=f(3)\nassert next(g)==1\ntry: next(g)\nexcept ValueError: pass\nelse: assert 0",
    ),
    "send to a generator": Row("def f(n):\n  while True:\n    n = yield n*2", "g=f(3)\nassert next(g)==6 and g.send(4)==8"),
    "range": Row("def f(n): return range(n)", "assert f(3) == range(3) and list(f(2))==[0,1]"),
    "map": Row("def f(n): return map(str,[n])", "assert list(f(3)) == ['3']"),
    "filter": Row("def f(n): return filter(None,[0,n])", "assert list(f(3)) == [3]"),
    "zip": Row("def f(n): return zip([1],[n])", "assert list(f(3)) == [(1,3)]"),
    "reversed": Row("def f(n): return reversed([1,n])", "assert list(f(3)) == [3,1]"),
    "enumerate": Row("def f(n): return enumerate([n])", "assert list(f(3)) == [(0,3)]"),
    "keys": Row("def f(n): return {n:1}.keys()", "assert f(3) == {3: 0}.keys() and 3 in f(3) and list(f(3)) == [3]"),
    "items": Row("def f(n): return {n:1}.items()", "assert list(f(3)) == [(3,1)]"),
    "values": Row("def f(n): return {n:1}.values()", "assert sorted(f(3)) == [1]"),
    "deque": Row(
        "from collections import deque\ndef f(n): return deque([1,n],3)",
        "from collections import deque\nassert f(3) == deque([1,3]) and f(3).maxlen==3 and list(f(1))==[1,1]",
    ),
    "counter": Row(
        "from collections import Counter\ndef f(n): return Counter([1,n])",
        "r=f(3)\nassert r == {1:1,3:1} and r[7]==0 and r.most_common(1)==[(1,1)]",
    ),
    "defaultdict": Row(
        "from collections import defaultdict\ndef f(n):\n  d=defaultdict(list); d[n].append(1); return d",
        "r=f(3)\nassert r == {3:[1]} and r[7]==[]",
    ),
    "defaultdict lambda": Row(
        "from collections import defaultdict\ndef f(n):\n  d=defaultdict(lambda: 5); d[n]; return d",
        "r=f(3)\nassert r == {3:5} and r[7]==5",
    ),
    "ordered": Row(
        "from collections import OrderedDict\ndef f(n): return OrderedDict([(n,1),(1,2)])",
        "r=f(3)\nassert list(r)==[3,1] and r=={1:2,3:1}; r.move_to_end(3)",
    ),
    "date": Row(
        "import datetime\ndef f(n): return datetime.date(2024,1,n)",
        "import datetime\nassert f(3) == datetime.date(2024,1,3) and f(3).year==2024",
    ),
    "datetime": Row(
        "import datetime\ndef f(n): return datetime.datetime(2024,1,n,tzinfo=datetime.timezone.utc)",
        "import datetime\nassert f(3).isoformat()=='2024-01-03T00:00:00+00:00'",
    ),
    "timedelta": Row(
        "import datetime\ndef f(n): return datetime.timedelta(n)",
        "import datetime\nassert f(3) == datetime.timedelta(3) and f(2).total_seconds()==172800",
    ),
    "bytes": Row("def f(n): return bytes([n])", "assert f(3) == b'\\x03'"),
    "bytearray": Row("def f(n): return bytearray([n])", "assert f(3) == b'\\x03'"),
    "memoryview": Row("def f(n): return memoryview(bytes([n]))", "assert f(3) == b'\\x03' and f(3).tobytes()==b'\\x03'"),
    "complex": Row("def f(n): return complex(n,1)", "assert f(3) == 3+1j and f(3).imag==1"),
    "namedtuple": Row(
        "from collections import namedtuple\nP=namedtuple('P','x y')\ndef f(n): return P(n,1)",
        (
            "p=f(3)\n"
            "assert p == (3,1) and p.x==3 and p._asdict()=={'x':3,'y':1} and p._replace(x=1).x==1 and str(p)=='P(x=3, y=1)'"
        ),
    ),
    "enum": Row(
        "import enum\nclass C(enum.Enum):\n  A=1\ndef f(n): return C.A",
        "assert f(3).name=='A' and f(3).value==1 and f(1)==f(2) and f(1) is f(2)",
    ),
    "intenum": Row(
        "import enum\nclass C(enum.IntEnum):\n  A=1\ndef f(n): return C.A", "assert f(3)==1 and f(3).name=='A' and f(1)<2"
    ),
    "frozenset": Row("def f(n): return frozenset([n])", "assert f(3) == {3}"),
    "dataclass": Row(
        (
            "import dataclasses\n@dataclasses.dataclass\nclass P:\n  x:int\n"
            "  def double(self): return P(self.x*2)\ndef f(n): return P(n)"
        ),
        "p=f(3)\nassert p.x==3 and p.double().x==6 and p==f(3) and p!=f(4) and repr(p)=='P(x=3)'",
    ),
    "a linked list": Row(
        (
            "class N:\n  def __init__(s,v,n=None): s.val=v; s.next=n\ndef f(xs):\n  h=None\n"
            "  for x in reversed(xs): h=N(x,h)\n  return h"
        ),
        "h=f([1,2,3])\nout=[]\nwhile h: out.append(h.val); h=h.next\nassert out==[1,2,3]",
    ),
    "a linked list that is a ring": Row(
        "class N: pass\ndef f(n):\n  a=N(); a.next=a; return a", "a=f(1)\nassert a.next is a and a.next.next is a"
    ),
    "a coroutine": Row("async def f(n): return n*2", "import asyncio\nassert asyncio.run(f(3))==6"),
    "coroutines that are awaited": Row(
        "import asyncio\nasync def f(n):\n  await asyncio.sleep(0); return n*2",
        (
            "import asyncio\nasync def main(): return await f(3)+sum(await asyncio.gather(f(1),f(2)))\n"
            "assert asyncio.run(main())==12"
        ),
    ),
    "an asynchronous generator": Row(
        "async def f(n):\n  for i in range(n): yield i",
        "import asyncio\nasync def main(): return [x async for x in f(3)]\nassert asyncio.run(main())==[0,1,2]",
    ),
    "a closure": Row("def f(n): return lambda m: n*m", "assert f(3)(4)==12 and f(3)(m=2)==6"),
    "closures in closures": Row("def f(a): return lambda b: lambda c: a+b+c", "assert f(1)(2)(3)==6"),
    "a context": Row(
        "from contextlib import contextmanager\n@contextmanager\ndef f(n): yield n", "c=f(3)\nwith c as x: assert x==3"
    ),
    "a file in memory": Row(
        "import io\ndef f(n): return io.StringIO('a\\nb\\n')",
        "g=f(3)\nassert g.readline()=='a\\n' and list(g)==['b\\n'] and f(1).read()=='a\\nb\\n'",
    ),
    "iterator class": Row(
        (
            "class I:\n  def __init__(s,n): s.n=n\n  def __iter__(s): s.i=0; return s\n  def __next__(s):\n"
            "    s.i+=1\n    if s.i>s.n: raise StopIteration\n    return s.i\ndef f(n): return I(n)"
        ),
        "r=f(3)\nassert list(r)==[1,2,3] and list(r)==[1,2,3] and sum(f(30))==465 and 2 in f(3)",
    ),
    "a list of its own class": Row(
        "class L(list):\n  def total(s): return sum(s)\ndef f(n): return L([1,n])",
        (
            "r=f(3)\n"
            "assert r==[1,3] and r.total()==4 and len(r)==2 and r[0]==1 and isinstance(r,list) and 3 in r; r.append(5)\n"
            "assert r.total()==9 and r==[1,3,5]"
        ),
    ),
    "a dict of its own class": Row(
        "class D(dict):\n  def __getattr__(s,k): return s[k]\ndef f(n): return D(a=n)",
        "r=f(3)\nassert r=={'a':3} and r.a==3 and r['a']==3 and list(r)==['a'] and dict(r)=={'a':3}",
    ),
    "operators among objects": Row(
        (
            "class V:\n  def __init__(s,x): s.x=x\n  def __add__(s,o): return V(s.x+o.x)\n"
            "  def __mul__(s,k): return V(s.x*k)\n  def __eq__(s,o): return s.x==o.x\ndef f(n): return V(n)"
        ),
        "assert f(1)+f(2)==f(3) and f(2)*3==f(6) and (f(2)*3).x==6",
    ),
    "a product that is shown": Row(
        (
            "class V:\n  def __init__(s,*x): s.x=x\n  def __mul__(s,k): return V(*[n*k for n in s.x])\n"
            "  def __repr__(s): return f'V{s.x}'\n  def __iter__(s): return iter(s.x)\ndef f(n): return V(n, 1)"
        ),
        "assert str(f(2)*3)=='V(6, 3)' and list(f(2)*3)==[6,3]",
    ),
    "a length": Row("class S:\n  def __len__(s): return 3\ndef f(n): return S()", "assert len(f(1))==3 and f(1)"),
    "items by keys": Row("class S:\n  def __getitem__(s,k): return k*2\ndef f(n): return S()", "assert f(1)[4]==8"),
    "a partial function": Row("import functools\ndef f(n): return functools.partial(pow,n)", "assert f(3)(2)==9"),
    "decimals": Row(
        "from decimal import Decimal\ndef f(n): return [Decimal(n)]",
        "from decimal import Decimal\nassert f('1.5')==[Decimal('1.5')]",
    ),
    "a path": Row(
        "import pathlib\ndef f(n): return pathlib.Path('/a')/n",
        "import pathlib\nassert f('b')==pathlib.Path('/a/b') and f('b').name=='b'",
    ),
    "a match": Row("import re\ndef f(n): return re.match('(a+)', n)", "assert f('aab').group(1)=='aa' and f('b') is None"),
    "an exception that is returned": Row(
        "def f(n): return ValueError(n)", "assert isinstance(f('x'),ValueError) and str(f('x'))=='x'"
    ),
    "objects in a list": Row(
        "class P:\n  def __init__(s,x): s.x=x\ndef f(n): return [P(i) for i in range(n)]", "assert [p.x for p in f(3)]==[0,1,2]"
    ),
    "an object given back": Row(
        "class P:\n  def __init__(s,x): s.x=x\ndef f(n): return P(n) if isinstance(n,int) else n.x", "assert f(f(3))==3"
    ),
    "a named tuple given back": Row(
        "from collections import namedtuple\nP=namedtuple('P','x')\ndef f(n): return P(n) if isinstance(n,int) else n.x",
        "assert f(f(3))==3",
    ),
    "a tree": Row(
        (
            "class T:\n    def __init__(s, v, l=None, r=None): s.val, s.left, s.right = v, l, r\n"
            "def f(n): return T(n, f(n - 1), f(n - 1)) if n else None"
        ),
        (
            "def depth(t): return 1 + max(depth(t.left), depth(t.right)) if t else 0\n"
            "assert depth(f(3)) == 3 and f(2).left.val == 1"
        ),
    ),
    "a tree that is wrong": Row(
        (
            "class T:\n    def __init__(s, v, l=None, r=None): s.val, s.left, s.right = v, l, r\n"
            "def f(n): return T(n, f(n - 1)) if n else None"
        ),
        "assert f(2).right.val == 1",
        passes=False,
    ),
    "a dataclass that is wrong": Row(
        "import dataclasses\n@dataclasses.dataclass\nclass P:\n    x: int\ndef f(n): return P(n + 1)",
        "assert f(3).x == 3",
        passes=False,
    ),
    "a frozen dataclass in a set": Row(
        "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass P:\n    x: int\ndef f(n): return P(n % 2)",
        "assert len({f(1), f(2), f(3)}) == 2",
    ),
    "objects in order": Row(
        (
            "import functools\n@functools.total_ordering\nclass P:\n    def __init__(s, x): s.x = x\n"
            "    def __eq__(s, o): return s.x == o.x\n    def __lt__(s, o): return s.x < o.x\n"
            "def f(n): return [P(x) for x in n]"
        ),
        "assert [p.x for p in sorted(f([3, 1, 2]))] == [1, 2, 3] and max(f([1, 5])).x == 5",
    ),
    "an attribute that is set": Row(
        "class P: pass\ndef f(n):\n    p = P(); p.x = n\n    return p",
        "p = f(3)\np.x += 1\nassert p.x == 4 and hasattr(p, 'x') and not hasattr(p, 'y')",
    ),
    "an item that is set": Row(
        (
            "class S:\n    def __init__(s): s.d = {}\n    def __setitem__(s, k, v): s.d[k] = v\n"
            "    def __getitem__(s, k): return s.d[k]\n    def __delitem__(s, k): del s.d[k]\n"
            "def f(n): return S()"
        ),
        "s = f(1)\ns['a'] = 2\nassert s['a'] == 2\ndel s['a']\ntry: s['a']\nexcept KeyError: pass\nelse: assert False",
    ),
    "a property that raises": Row(
        "class S:\n    @property\n    def x(s): raise ValueError('no')\ndef f(n): return S()",
        "try: f(1).x\nexcept ValueError as e: assert str(e) == 'no'\nelse: assert False",
    ),
    "an attribute that there is not": Row(
        "class S: pass\ndef f(n): return S()", "try: f(1).x\nexcept AttributeError: pass\nelse: assert False"
    ),
    "is it callable": Row("class S: pass\ndef f(n): return S() if n else len", "assert not callable(f(1)) and callable(f(0))"),
    "isinstance of an iterator": Row(
        "def f(n): yield n",
        (
            "import collections.abc, types\n"
            "assert isinstance(f(1), collections.abc.Iterator) and isinstance(f(1), types.GeneratorType)"
        ),
    ),
    "a class of a name": Row(
        "class Point: pass\ndef f(n): return Point()",
        "assert type(f(1)).__name__ == 'Point' and f(1).__class__.__name__ == 'Point'",
    ),
    "many items": Row("def f(n):\n    for i in range(n): yield i", "assert sum(f(20000)) == 199990000"),
    "an iterator and what it changes": Row(
        (
            "class S:\n    def __init__(s): s.n = 0\n    def items(s):\n"
            "        while s.n < 100: s.n += 1; yield s.n\ndef f(n): return S()"
        ),
        "s = f(1)\nfor k in s.items():\n    assert s.n == k\n",
    ),
    "a range without end": Row(
        "def f(n): return range(10 ** 9)",
        "assert len(f(1)) == 10 ** 9 and f(1)[5] == 5 and 7 in f(1) and f(1) == range(10 ** 9)",
    ),
    "exit": Row(
        "import sys\ndef f(n): sys.exit(n)",
        (
            "import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n"
            "        with self.assertRaises(SystemExit) as e: f(2)\n"
            "        self.assertEqual(e.exception.code, 2)\n"
        ),
    ),
    "exit with a text": Row(
        "import sys\ndef f(n): sys.exit('no ' + n)",
        "try: f('x')\nexcept SystemExit as e: assert e.code == 'no x'\nelse: assert False",
    ),
    "exit without a code": Row(
        "def f(n): raise SystemExit", "try: f('x')\nexcept SystemExit as e: assert e.code is None\nelse: assert False"
    ),
    "no exit where one is expected": Row(
        "def f(n): return n", "try: f(1)\nexcept SystemExit: pass\nelse: assert False", passes=False
    ),
    "a time of day": Row(
        "import datetime\ndef f(n): return datetime.time(n, 30)",
        "import datetime\nassert f(3) == datetime.time(3, 30) and f(3) < datetime.time(4)",
    ),
    "times in a list": Row(
        "import datetime\ndef f(n): return {'at': [datetime.date(2024, 1, 1) + datetime.timedelta(n)]}",
        "import datetime\nassert f(3) == {'at': [datetime.date(2024, 1, 4)]}",
    ),
    "a deque that is no list": Row(
        "from collections import deque\ndef f(n): return deque([n])", "assert f(3) == [3]", passes=False
    ),
    "a date given": Row("def f(d): return d.year", "import datetime\nassert f(datetime.date(2024, 1, 1)) == 2024"),
    "a deque given": Row(
        "def f(d): return [d.popleft(), type(d).__name__]",
        "from collections import deque\nassert f(deque([1, 2])) == [1, 'deque']",
    ),
    "a flag": Row(
        "import enum\nclass C(enum.Flag):\n    A = 1\n    B = 2\ndef f(n): return C.A | C.B", "assert f(1).value == 3"
    ),
    "a text of its own class": Row(
        "class S(str):\n    def shout(s): return s.upper() + '!'\ndef f(n): return S(n)",
        "assert f('a') == 'a' and f('a').shout() == 'A!' and f('a').upper() == 'A'",
    ),
    "a builtin class": Row("def f(n): return type(n)", "assert f(1) is int and f('') == str"),
    "ellipsis": Row("def f(n): return (..., n)", "assert f(1) == (..., 1)"),
    "a UUID": Row("import uuid\ndef f(n): return uuid.UUID(int=n)", "import uuid\nassert f(1) == uuid.UUID(int=1)"),
    "an asynchronous context": Row(
        "class C:\n    async def __aenter__(s): return 5\n    async def __aexit__(s, *a): pass\ndef f(n): return C()",
        "import asyncio\nasync def main():\n    c = f(1)\n    async with c as x: return x\nassert asyncio.run(main()) == 5",
    ),
    "a coroutine that raises": Row(
        "async def f(n): raise ValueError('x')",
        "import asyncio\ntry: asyncio.run(f(1))\nexcept ValueError: pass\nelse: assert False",
    ),
    "a coroutine that is compared": Row("async def f(n): return n", "assert f(1) == 1", passes=False),
}
HOSTILE = {
    "equal to everything": Row("class E:\n  __eq__=lambda *a: True\ndef f(n): return E()", "assert f(3)==4", passes=False),
    "equal from the other side": Row(
        "class E:\n  __eq__=lambda *a: True\ndef f(n): return E()", "assert 4==f(3)", passes=False
    ),
    "a difference of nothing": Row(
        "class E:\n  __sub__=lambda *a: 0.0\n  __abs__=lambda s:0\ndef f(n): return E()",
        "assert abs(f(3)-4)<1e-6",
        passes=False,
    ),
    "a difference that is an object": Row(
        "class E:\n  __sub__=lambda s,o: s\n  __abs__=lambda s:0\ndef f(n): return E()", "assert abs(f(3)-4)<1e-6", passes=False
    ),
    "between all bounds": Row(
        "class E:\n  __lt__=__gt__=__le__=__ge__=lambda *a: True\ndef f(n): return E()", "assert 3<f(3)<5", passes=False
    ),
    "has all in it": Row("class E:\n  __contains__=lambda *a: True\ndef f(n): return E()", "assert 3 in f(3)", passes=False),
    "items that are equal to everything": Row(
        (
            "class E:\n  __eq__=lambda *a: True\n  __hash__=lambda s:3\nclass I:\n"
            "  def __iter__(s): yield E()\ndef f(n): return I()"
        ),
        "assert 3 in f(3)",
        passes=False,
    ),
    "a list of those": Row(
        "class E:\n  __eq__=lambda *a: True\ndef f(n): return [E(),E()]", "assert f(3)==[1,2]", passes=False
    ),
    "a set of those": Row(
        "class E:\n  __eq__=lambda *a: True\n  __hash__=lambda s:1\ndef f(n): return {E()}", "assert f(3)=={1}", passes=False
    ),
    "a number that is another": Row(
        "class E(int):\n  __eq__=lambda *a: True\n  __sub__=lambda *a:0\ndef f(n): return E(9)", "assert f(3)==4", passes=False
    ),
    "text without end": Row("def f(n):\n  while True: yield 'x'*100000", "assert list(f(3))==[1]", passes=False),
    "numbers without end": Row("def f(n):\n  while True: yield 1", "assert list(f(3))==[1]", passes=False),
    "a context that holds back all": Row(
        "class C:\n  __enter__=lambda s:s\n  __exit__=lambda *a: True\ndef f(n): return C()",
        "c=f(3)\nwith c: assert c.x==3",
        passes=False,
    ),
    "what is false": Row("class E:\n  __bool__=lambda s: False\ndef f(n): return E()", "assert f(3) is False", passes=False),
    "a class with an odd name": Row("class E: pass\nE.__name__='x'*9\ndef f(n): return E()", "assert f(3)=='a'", passes=False),
    "equal objects that differ": Row(
        "class E:\n    __eq__ = lambda *a: True\n    __ne__ = lambda *a: True\ndef f(n): return E()",
        "x, y = f(1), f(2)\nassert x == y and x != y",
        passes=False,
    ),
    "a round number": Row(
        "class E:\n    __sub__ = lambda *a: E()\n    __round__ = lambda *a: 0\ndef f(n): return E()",
        "assert round(f(3) - 4, 3) == 0",
        passes=False,
    ),
    "a product": Row(
        "class E:\n    __rmul__ = __mul__ = lambda s, o: o\ndef f(n): return E()", "assert f(3) * 4 == 4", passes=False
    ),
    **{
        f"a difference as {name}": Row(
            "class E:\n    __sub__ = __rsub__ = __xor__ = lambda s, o: s\n    __str__ = __repr__ = lambda s: '0'\n"
            "    __format__ = lambda s, how: '0.000'\n    __iter__ = lambda s: iter([])\ndef f(n): return E()",
            test,
            passes=False,
        )
        for name, test in {
            "a text": "assert str(f(3) - 4) == '0'",
            "a text of the other side": "assert str(4 - f(3)) == '0'",
            "a text of itself": "assert repr(f(3) - 4) == '0'",
            "a number with three places": "assert f'{f(3) - 4:.3f}' == '0.000'",
            "a number by format()": "assert '{:.3f}'.format(f(3) - 4) == '0.000'",
            "a list": "assert list(f(3) ^ {4}) == []",
            "a set": "assert set(f(3) ^ {4}) == set()",
            "nothing to join": "assert ''.join(f(3) - {'a'}) == ''",
            "the text of a set": "assert str(f(3) ^ {4}) == '0'",
        }.items()
    },
    "a float of its own": Row(
        "class E(float):\n    __sub__ = lambda *a: 0.0\n    __lt__ = lambda *a: True\ndef f(n): return E(9)",
        "assert abs(f(3) - 4) < 1e-6",
        passes=False,
    ),
    "hashes that are all the same": Row(
        "class H:\n    __hash__ = lambda s: 1\ndef f(n): return [H() for _ in range(3000)]",
        "assert len(set(f(1))) == 1",
        passes=False,
    ),
    "a class each": Row(
        "def f(n): return [type('C%d' % i, (), {})() for i in range(3000)]", "assert len(f(1)) == 1", passes=False
    ),
    "a list in itself": Row(
        "def f(n):\n    a = []\n    a.append(a)\n    return a",
        "try: f(1)\nexcept Exception: pass\nelse: assert f(1) == 1",
        passes=False,
    ),
    "a deque in itself": Row(
        "from collections import deque\ndef f(n):\n    a = deque()\n    a.append(a)\n    return a",
        "assert len(f(1)) == 2",
        passes=False,
    ),
    "exit as an answer": Row("def f(n): raise SystemExit(0)", "assert True\nf(1)\nassert f(2) == 4", passes=False),
    "exit as an attribute": Row(
        "class E:\n    def __getattr__(s, n): raise SystemExit(0)\ndef f(n): return E()", "assert f(1).x == 4", passes=False
    ),
    "an end in an attribute": Row(
        "import os\nclass E:\n    def __getattr__(s, n): os._exit(0)\ndef f(n): return E()", "assert f(1).x == 4", passes=False
    ),
    "an iterator that ends with its process": Row(
        "import os\nclass E:\n    def __iter__(s): return s\n    def __next__(s): os._exit(0)\ndef f(n): return E()",
        "for x in f(1): assert x == 4",
        passes=False,
    ),
    "no data where a list is sorted": Row(
        "class E:\n    def sort(s, **k): pass\n    def __iter__(s): return iter([7])\ndef f(n): return E()",
        "x = f(1)\nx.sort(key=lambda n: n)\nassert list(x) == [1]",
        passes=False,
    ),
    "a method where a value is passed on": Row(
        "class E:\n    def x(s): pass\ndef f(n): return E()", "assert f(f(1).x) == 3", passes=False
    ),
}
"""What passes for nothing, whatever a bare run says."""
FORGED = """
import sys
def f(n):
    frame = sys._getframe()
    while "Kept" not in frame.f_globals: frame = frame.f_back
    frame.f_globals["Kept"].answer = lambda *_: b'{"value":%s}'
"""
"""Code that answers with a form of its own writing, in place of what the host makes of its value."""
LONG = '["k","builtins.range",0,30000000,1]'
FORMS = {
    "a range that is too long": LONG,
    "a deque of one": f'["k","collections.deque",{LONG},null]',
    "values of one": f'["k","builtins.dict_values",{LONG}]',
    "an array of one": f'["k","array.array","i",{LONG}]',
    "a counter of one": f'["k","collections.Counter",{LONG}]',
    "memory without content": '["k","builtins.memoryview",30000000]',
    "a class that is not by its name": '["k","builtins.type","__loader__"]',
    "digits that are too many": '["n",".%s"]' % ("1" * 4299),
}
"""What no honest host writes."""
BARE = """
import json, sys
found = []
for code, test in json.load(sys.stdin):
    names = {"__name__": "solution"}
    module = sys.modules["solution"] = type(sys)("solution")
    try:
        exec(code, module.__dict__)
        names = dict(module.__dict__)
        exec(test, names)
        for each in [each for each in names.values() if isinstance(each, type) and hasattr(each, "test_it")]:
            each("test_it").debug()
        found.append(True)
    except Exception:
        found.append(False)
print(json.dumps(found))
"""
PARTS = 5
IMPORT = "from solution import f\n"


@pytest.mark.parametrize("part", every(PARTS, range(PARTS)))
def test_the_verdict_is_a_bare_runs(part: int, outcomes: Callable[..., list[Outcome]]) -> None:
    rows = {name: row for number, (name, row) in enumerate(ROWS.items()) if number % PARTS == part}
    given = json.dumps([(row.code, row.test) for row in rows.values()])
    bare = subprocess.run([sys.executable, "-c", BARE], input=given, capture_output=True, text=True, timeout=250, check=True)
    wrong = [name for (name, row), found in zip(rows.items(), json.loads(bare.stdout), strict=True) if found is not row.passes]
    assert not wrong, f"the table is wrong about a plain Python: {wrong}"
    found = outcomes([Task(code=row.code, tests=[IMPORT + row.test], grading="separate") for row in rows.values()])
    differ = {name: one.message for (name, row), one in zip(rows.items(), found, strict=True) if one.reward() != row.passes}
    assert not differ


def test_nothing_that_was_not_checked_passes(outcomes: Callable[..., list[Outcome]]) -> None:
    found = outcomes(
        [Task(code=row.code, tests=[IMPORT + row.test], grading="separate") for row in HOSTILE.values()], timeout_seconds=15
    )
    differ = {name: one.message for name, one in zip(HOSTILE, found, strict=True) if one.reward() != 0.0}
    assert not differ


@pytest.mark.parametrize("test", ["assert f(f(3)) == 3", "assert sorted(f(3)) == [1]"])
def test_what_no_host_would_write_is_no_data(test: str, outcomes: Callable[..., list[Outcome]]) -> None:
    """It fills nobody's memory, and a test that gives it back is none that cannot be graded."""
    tasks = [Task(code=FORGED % form, tests=[IMPORT + test], grading="separate") for form in FORMS.values()]
    found = dict(zip(FORMS, outcomes(tasks, timeout_seconds=15), strict=True))
    assert {name: one.message for name, one in found.items() if one.reward() != 0.0 or "is no data" not in one.message} == {}


@pytest.mark.deep
def test_a_grade_says_the_same(server: Any) -> None:
    tests, expected, names = "import unittest\n", dict[str, bool](), []
    with aviato.Sandbox(base_url=server.url) as sandbox:
        for number, row in enumerate(ROWS.values()):
            if "unittest" in row.test or "asyncio" in row.code:
                continue
            sandbox.write_file(f"code{number}.py", row.code.encode()).result()
            body = textwrap.indent(f"from code{number} import f\n{row.test}", " " * 8)
            tests += f"class Test{number}(unittest.TestCase):\n    def test_it(self):\n{body}\n"
            expected[f"Test{number}"] = row.passes
            names.append(f"code{number}.py")
        graded = sandbox.grade(
            {"test_all.py": tests.encode()}, ["python3", "-m", "unittest"], result_paths=names, timeout_seconds=50
        ).result(58)
    found = {case.name.split(".")[-2]: case.passed for case in graded.cases}
    assert {name for name in expected if found.get(name) is not expected[name]} == set(), graded.cases


def test_an_exit_ends_no_script_as_if_it_had_passed(server: Any) -> None:
    test = b"from solution import f\ntry: assert f(1) == 1\nexcept SystemExit as e: assert e.code == 3\nassert f(2) == 4\n"
    with aviato.Sandbox(base_url=server.url) as sandbox:
        for ends, passed in (("n if n == 1 else 4", True), ("exit(0) if n == 2 else n", False), ("exit(0)", False)):
            code = f"from sys import exit\ndef f(n): return {ends}\n"
            sandbox.write_file("solution.py", code.encode()).result()
            graded = sandbox.grade(
                {"check.py": test}, ["python3", "check.py"], result_paths=["solution.py"], timeout_seconds=20
            )
            assert graded.result(50).passed is passed, ends
