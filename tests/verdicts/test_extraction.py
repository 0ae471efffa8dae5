"""Whatever form a model gives its code: a table a kind, of completions, their code and the rule that found it."""

from __future__ import annotations

import pytest

from aviato.rl.extraction import Extraction, extract, extract_code

F = "def f(x):\n    return x"
NONE = (None, "none")
DOCSTRING_WITH_FENCE = 'def f():\n    """\n```\nf()\n```\n    """'
LONG_DOCSTRING = 'def f(x):\n    """Give back the value.\n\n    It is the very same value as before.\n    """\n    retrun x'


def fenced(label: str, mark: str = "```", code: str = F) -> str:
    return f"Here:\n\n{mark}{label}\n{code}\n{mark}\n\nDone."


PYTHON_LABELS = [
    "python",
    "py",
    "py3",
    "python3",
    "Python",
    "PYTHON",
    "Py",
    "Python3",
    "python 3",
    "python3.11",
    "py3.11",
    "python-3.12",
    "python2",
    "ipython",
    "ipython3",
    "{.python}",
    "{python}",
    "{ .python .numberLines }",
    "{python, echo=FALSE}",
    "python {cmd=true}",
    'python title="solution.py"',
    "python:solution.py",
    "python,linenos",
    "python;",
    "language-python",
    "lang-py",
    " python",
    "python\t",
    "solution.py",
    "src/main.py",
    "python {1,3-5}",
    "python\u200b",
    "\u200bpython",
    ".python",
    "pypy3",
    'py file="f(x).py"',
    "python:",
]

OTHER_LABELS = [
    "bash",
    "cpp",
    "json",
    "text",
    "output",
    "pycon",
    "console",
    "js",
    "{.bash}",
    "toml",
    "main.rs",
    "java",
    "pytb",
    "xml",
]

FENCES = {
    "backticks": (fenced("python"), F),
    "tildes": (fenced("python", "~~~"), F),
    "five ticks": (fenced("python", "`````"), F),
    "ticks around ticks": (fenced("python", "````", "s = '''\n```\n'''"), "s = '''\n```\n'''"),
    "tildes around ticks": (fenced("python", "~~~", "s = '''\n```\n'''"), "s = '''\n```\n'''"),
    "longer closing": ("```python\n" + F + "\n``````\nDone.", F),
    "shorter is content": ("````python\n```\n````", "```"),
    "other character is content": ("```python\nx = '''\n~~~\n'''\n```", "x = '''\n~~~\n'''"),
    "backtick in the info of tildes": ("~~~python `x`\nx = 1\n~~~", "x = 1"),
    "three blanks": ("   ```python\n   def f(x):\n       return x\n   ```", F),
    "four blanks do not open": (
        "```python\ndef f():\n    '''\n    ```python\n    f()\n    ```\n    '''\n```\nDone.",
        "def f():\n    '''\n    ```python\n    f()\n    ```\n    '''",
    ),
    "markup around": ("<details>\n<summary>Code</summary>\n" + fenced("python") + "\n</details>", F),
    "a line of text right before and after": ("Text\n```python\n" + F + "\n```\nText", F),
    "ends of a turn in strings": (
        "```python\nE = '</s>'\nT = \"<|im_end|>\"  # <|im_end|>\nx = 1\n```",
        "E = '</s>'\nT = \"<|im_end|>\"  # <|im_end|>\nx = 1",
    ),
    "four blanks do not close": (
        "```python\ndef f():\n    '''\n    ```\n    f()\n    ```\n    '''\n```",
        "def f():\n    '''\n    ```\n    f()\n    ```\n    '''",
    ),
    "indented as a whole": ("    ```python\n    def f(x):\n        return x\n    ```", F),
    "content indented as a whole": ("```python\n    def f(x):\n        return x\n```", F),
    "tabs": ("```python\ndef f(x):\n\treturn x\n```", "def f(x):\n\treturn x"),
    "blanks behind": ("```python   \n" + F + "\n```  \t\nDone.", F),
    "no text between": ("```python\na = 1\n```\n```python\nb = 2\n```", "b = 2"),
    "empty lines inside": ("```python\n\n\na = 1\n\n\nb = 2\n\n```", "a = 1\n\n\nb = 2"),
    "an empty one does not hide": ("```python\na = 1\n```\n```python\n```", "a = 1"),
    "a shell's beside": (fenced("python") + "\n```bash\npython f.py\n```", F),
    "an installation before": ("```sh\npip install numpy\n```\n" + fenced("py"), F),
    "output without a mark": (fenced("python") + "\n```\nhello\n```", F),
    "corrected": (fenced("python", code="a = 1") + "Wait:\n" + fenced("python"), F),
    "text that looks like a fence": ("Use ``` for fences.\n\n" + fenced("python"), F),
    "inline code": ("Use `x` and ``y``.\n" + fenced("python"), F),
    "under a heading": ("# Solution\n" + fenced("python"), F),
    "behind a paragraph": ("Solution:\n```python\n" + F + "\n```", F),
    "windows": (fenced("python").replace("\n", "\r\n"), F),
    "old mac": (fenced("python").replace("\n", "\r"), F),
    "unicode line ends are none": ("```python\ns = '\u2028\x0b\x0c\x85'\n```", "s = '\u2028\x0b\x0c\x85'"),
    "nul": ("```python\nx = '\0'\n```", "x = '\0'"),
    "lone surrogate": ("```python\nx = '\ud800'\n```", "x = '\ud800'"),
    "joined emoji": ("```python\nx = '\U0001f468\u200d\U0001f469'\n```", "x = '\U0001f468\u200d\U0001f469'"),
    "byte order mark": ("\ufeff```python\nx = 1\n```", "x = 1"),
    "byte order mark inside": ("```python\n\ufeffx = 1\n```", "x = 1"),
    "zero width before the marks": ("\u200b```python\nx = 1\n\u200b```\u200b\nDone.", "x = 1"),
    "a syntax error is code": ("```python\ndef f(:\n```", "def f(:"),
    "prose in a marked one is code": ("```python\nI do not know\n```", "I do not know"),
}

CONTAINERS = {
    "list": ("- Do:\n\n  ```python\n  def f(x):\n      return x\n  ```\n- Done", F),
    "ordered": ("1. Do:\n   ```python\n   def f(x):\n       return x\n   ```\n2. Done", F),
    "ordered, four blanks": ("1. Do:\n\n    ```python\n    def f(x):\n        return x\n    ```", F),
    "two digits": ("10) Do:\n\n    ```python\n    def f(x):\n        return x\n    ```", F),
    "nested": ("- a\n  - b\n    ```python\n    def f(x):\n        return x\n    ```", F),
    "three deep": ("* a\n  1. b\n     + c\n       ~~~py\n       def f(x):\n           return x\n       ~~~", F),
    "right behind the marker": ("- ```python\n  def f(x):\n      return x\n  ```", F),
    "tab": ("-\tDo:\n\n\t```python\n\tdef f(x):\n\t    return x\n\t```", F),
    "empty lines": ("- ```python\n  a = 1\n\n  b = 2\n  ```", "a = 1\n\nb = 2"),
    "not indented": ("1. Do:\n   ```python\ndef f(x):\n    return x\n```\n2. Done", F),
    "not indented behind the marker": ("- ```python\ndef f(x):\n    return x\n```", F),
    "closing not indented": ("1. Do:\n   ```python\n   def f(x):\n       return x\n```\n2. Done", F),
    "cut off in a list": ("- ```python\n  x = 1\n- other", "x = 1"),
    "quote": ("> ```python\n> def f(x):\n>     return x\n> ```", F),
    "quote without blanks": (">```python\n>x = 1\n>```", "x = 1"),
    "quote with blanks in part": (">```python\n> x = 1\n>```", "x = 1"),
    "quote in quote": ("> > ```python\n> > def f(x):\n> >     return x\n> > ```", F),
    "list in quote": ("> - Do:\n>   ```python\n>   def f(x):\n>       return x\n>   ```", F),
    "quote in list": ("- > ```python\n  > def f(x):\n  >     return x\n  > ```", F),
    "quote with empty lines": ("> ```python\n> a = 1\n>\n> b = 2\n> ```", "a = 1\n\nb = 2"),
    "cut off in a quote": ("> ```python\n> x = 1\n\nDone.", "x = 1"),
    "a quote ends a lazy line": ("> text\n```python\nx = 1\n```", "x = 1"),
    "after a list": ("- a\n- b\n\n" + fenced("python"), F),
}

GLUED = {
    "closing": ("```python\ndef f(x):\n    return x```", F),
    "closing, text after": ("```python\ndef f(x):\n    return x```\nThis returns x.", F),
    "closing, another after": ("```python\na = 1```\ntext\n```python\nb = 2\n```", "b = 2"),
    "closing, shell after": ("```python\ndef f(x):\n    return x```\nRun:\n```bash\nls\n```", F),
    "closing, output after": ("```python\ndef f(x):\n    return x```\nGives\n```\n1\n```", F),
    "closing of tildes": ("~~~python\nx = 1~~~\ntext", "x = 1"),
    "comment that ends with ticks": ("```python\nx = 1  # see ```y```\nz = 2\n```", "x = 1  # see ```y```\nz = 2"),
    "opening": ("Here is the code:```python\n" + F + "\n```\nDone.", F),
    "opening, blank": ("Here is the code: ```python\n" + F + "\n```\nDone.", F),
    "opening without a mark": ("Here is the code: ```\n" + F + "\n```\nDone.", F),
    "opening behind bold": ("**Solution:** ```py\n" + F + "\n```", F),
    "opening in bold": ("**```python**\n" + F + "\n```", F),
    "opening and closing": ("Code:```python\ndef f(x):\n    return x```", F),
    "code on the line": ("```python def f(x):\n    return x\n```", F),
    "import on the line": ("```python import os\nprint(os)\n```", "import os\nprint(os)"),
    "all on one line": ("```python print(1)```", "print(1)"),
    "all on one line, no mark": ("```print(1)```", "print(1)"),
    "text behind the closing": ("```python\nx = 1\n``` This sets x to one.", "x = 1"),
    "begun anew": ("```python\na = 1\n```python\nb = 2\n```", "b = 2"),
    "nested in code": (
        "```python\n'''\n```python\nf()\n```\n'''\nx = 1\n```\nDone.",
        "'''\n```python\nf()\n```\n'''\nx = 1",
    ),
    "document": ("````markdown\n# Title\n```python\nx = 1\n```\n````", "x = 1"),
    "document of the same length": ("```markdown\n# Title\n```python\nx = 1\n```\n```", "x = 1"),
}

PROMPT = {
    "closing only": (F + "\n```\nThis returns x.", F, "closing_fence_only"),
    "closing only, nothing after": (F + "\n```", F, "closing_fence_only"),
    "closing glued": (F + "```\nThis returns x.", F, "closing_fence_only"),
    "closing, end of turn": (F + "\n```<|im_end|>", F, "closing_fence_only"),
    "label, then code": ("python\n" + F + "\n```", F, "closing_fence_only"),
    "label and colon, then code": ("Python:\n" + F + "\n```", F, "closing_fence_only"),
    "with output after": (F + "\n```\nOutput:\n```\n1\n```", F, "closing_fence_only"),
    "with a shell's after": (F + "\n```\nRun:\n```bash\nls\n```", F, "closing_fence_only"),
    "corrected after": (F + "\n```\nBetter:\n```python\nx = 1\n```", "x = 1", "fence"),
    "prose before is not code": ("Here is the code:\n```\n" + F, F, "plain_fence"),
    "in a tag": ("<answer>" + F + "\n```</answer>", F, "answer_tag"),
    "one statement": ("print(1)\n```", "print(1)", "closing_fence_only"),
    "after thinking": ("hm\n</think>\n" + F + "\n```\nDone.", F, "closing_fence_only"),
}

TRUNCATED = {
    "marked": ("```python\ndef f(x):\n    retu", "def f(x):\n    retu", "open_fence"),
    "unmarked": ("So:\n```\ndef f(x):\n    retu", "def f(x):\n    retu", "plain_fence"),
    "after a whole one": (fenced("python") + "\n```python\nprint(f(", "print(f(", "open_fence"),
    "only the opening": (fenced("python") + "\n```python\n", F, "fence"),
    "in the label": (fenced("python") + "\n```pyth", F, "fence"),
    "in the closing": ("```python\nx = 1\n``", "x = 1\n``", "open_fence"),
    "in a tag": ("<answer>\nprint(", "print(", "answer_tag"),
    "in a fence in a tag": ("<answer>\n```python\nprint(", "print(", "answer_tag"),
    "glued end of turn": ("```python\nx = 1<|endoftext|>", "x = 1", "open_fence"),
    "in a list": ("1. So:\n   ```python\n   x = (", "x = (", "open_fence"),
}

ENDS = [
    "<|im_end|>",
    "<|eot_id|>",
    "</s>",
    "<|endoftext|>",
    "<end_of_turn>",
    "<|end|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<eos>",
    "<|return|>",
    "<｜end▁of▁sentence｜>",
    "<|im_end|>\n<|im_start|>user\nthanks",
    "<|im_end|><|im_end|>\n",
    "\n<|im_end|>\n```python\nevil\n```",
]

THINKING = {
    "think": ("<think>```python\na = 1\n```</think>\n" + fenced("python"), F, "fence"),
    "thinking": ("<thinking>\n```python\na = 1\n```\n</thinking>\n" + fenced(""), F, "plain_fence"),
    "reasoning": ("<reasoning>x</reasoning><answer>\n" + F + "\n</answer>", F, "answer_tag"),
    "scratchpad": ("<scratchpad><answer>a</answer></scratchpad>" + fenced("py"), F, "fence"),
    "upper case": ("<THINK>\n<answer>a</answer>\n</Think>" + fenced("py"), F, "fence"),
    "attributes": ('<think budget="10">\n```python\na\n```\n</think>' + fenced("py"), F, "fence"),
    "fence open inside": ("<think>\n```python\na = 1\n</think>\n" + fenced("python"), F, "fence"),
    "opened in the prompt": ("First ```python\na\n``` no.\n</think>\n" + fenced("python"), F, "fence"),
    "opened in the prompt, fence open": ("hm\n```python\na = 1\n</think>\n" + fenced("python"), F, "fence"),
    "opened in the prompt, answer inside": ("<answer>a</answer></think>" + fenced("python"), F, "fence"),
    "mentioned inside": ("<think>I end with </think> and then\n```python\na\n```\n</think>" + fenced("py"), F, "fence"),
    "two": ("<think>a</think>x<think>```python\na\n```</think>" + fenced("py"), F, "fence"),
    "empty": ("<think>\n\n</think>\n\n" + fenced("py"), F, "fence"),
    "only code inside": ("<think>" + fenced("py") + "</think>I do not know.", *NONE),
    "only code before the closing": (fenced("py") + "</think>\nI do not know.", *NONE),
    "truncated": ("<think>\nMaybe\n" + fenced("py") + "\nbut", None, "truncated_thinking"),
    "truncated, in a line": ("Let me see. <think>Maybe\n" + fenced("py"), None, "truncated_thinking"),
    "truncated reasoning": ("<reasoning>\n<answer>x</answer>", None, "truncated_thinking"),
    "truncated, glued": ("Okay.<think>Maybe\n" + fenced("py"), None, "truncated_thinking"),
    "truncated behind a word": ("Okay<think>Maybe\n" + fenced("py"), None, "truncated_thinking"),
    "a type": ("In C++ that is vector<Thought>.\n" + fenced("py"), F, "fence"),
    "mentioned after": (fenced("py") + "\nI used <think> tags.", F, "fence"),
    "truncated after an answer": (fenced("py") + "\n<think>Is that", F, "fence"),
    "in a fence": (fenced("py", code="s = 1\n# <think>\nt = 2"), "s = 1\n# <think>\nt = 2", "fence"),
    "in a string in a fence": (fenced("py", code='print("<think>")'), 'print("<think>")', "fence"),
    "closing in a string": (fenced("py", code='x = t.split("</think>")[-1]'), 'x = t.split("</think>")[-1]', "fence"),
    "closing alone in a string": (fenced("py", code='x = """\n</think>\n"""'), 'x = """\n</think>\n"""', "fence"),
    "in inline code": ("I skip `<think>` today.\n" + fenced("py"), F, "fence"),
    "in quotes": ('I skip "<think>" today.\n' + fenced("py"), F, "fence"),
    "in an answer": ("<answer><think>no</think>print(1)</answer>", "print(1)", "answer_tag"),
    "magistral": ("[THINK]\n```python\na\n```\n[/THINK]" + fenced("py"), F, "fence"),
    "kimi": ("◁think▷```python\na\n```◁/think▷\n" + fenced("py"), F, "fence"),
    "harmony": (
        "<|channel|>analysis<|message|>```python\na\n```<|end|><|start|>assistant<|channel|>final<|message|>" + fenced("py"),
        F,
        "fence",
    ),
    "harmony, truncated": ("<|channel|>analysis<|message|>Let me\n" + fenced("py"), None, "truncated_thinking"),
}

TAGS = {
    "answer": (f"So\n<answer>\n{F}\n</answer>", F, "answer_tag"),
    "upper case": (f"<ANSWER>{F}</ANSWER>", F, "answer_tag"),
    "code": (f"<code>\n{F}\n</code>", F, "code_tag"),
    "code with attributes": (f'<code class="language-python">\n{F}\n</code>', F, "code_tag"),
    "solution": (f"<solution>\n{F}\n</solution>", F, "solution_tag"),
    "code in answer": (f"<answer><code>{F}</code></answer>", F, "answer_tag"),
    "fence in answer": (f"<answer>\n```python\n{F}\n```\n</answer>", F, "answer_tag"),
    "fence glued to the tags": (f"<answer>```python\n{F}```</answer>", F, "answer_tag"),
    "one line": ("<answer>```python print(1)```</answer>", "print(1)", "answer_tag"),
    "fence and text in answer": (f"<answer>I return x:\n```python\n{F}\n```\nDone.</answer>", F, "answer_tag"),
    "closing tag in an open fence": (f"<answer>\n```python\n{F}\n</answer>\nDone.", F, "answer_tag"),
    "closing tag in a string": ("<answer>```python\nx = '</answer>'\n```</answer>", "x = '</answer>'", "answer_tag"),
    "in a quote": ("> <answer>\n> ```python\n> x = 1\n> ```\n> </answer>", "x = 1", "answer_tag"),
    "empty pair, then code": (f"I use <answer></answer> tags.\n{fenced('py')}", F, "fence"),
    "dots in the pair": (f"The form is <answer>...</answer>.\n{fenced('py')}", F, "fence"),
    "placeholder in the pair": (f"The form is <answer>your code here</answer>.\n{fenced('py')}", F, "fence"),
    "mentioned apart": (f"I use <answer> and </answer> as tags.\n{fenced('py')}", F, "fence"),
    "mentioned in inline code": (f"I use `<answer>` here.\n{fenced('py')}", F, "fence"),
    "mentioned in inline code after": (f"{fenced('py')}\nThat is `<answer>x</answer>`.", F, "fence"),
    "mentioned after": (f"{fenced('py')}\nThat is my <answer>.", F, "fence"),
    "in the code": (fenced("py", code="print('<answer>1</answer>')"), "print('<answer>1</answer>')", "fence"),
    "prose in answer": (f"<answer>I cannot solve this task.</answer>{fenced('py')}", F, "fence"),
    "prose alone": ("<answer>The sum of both numbers.</answer>", *NONE),
    "short prose": ("<answer>Not possible.</answer>", *NONE),
    "prose in Chinese": ("<answer>我不知道怎么做</answer>", *NONE),
    "prose with a list": ("<answer>\n- sort the list\n- take the first\n</answer>", *NONE),
    "prose about code": ("<answer>The function f(x) returns the same value.</answer>", *NONE),
    "another language in answer": ("<answer>```bash\nls\n```</answer>", *NONE),
    "html code in prose": (f"The function <code>f</code> returns x.\n{fenced('py')}", F, "fence"),
    "comment in the pair": (f"The form is <answer># your code</answer>.\n{fenced('py')}", F, "fence"),
    "markup in the pair": (f"<answer><br></answer>{fenced('py')}", F, "fence"),
    "number": ("<answer>42</answer>", "42", "answer_tag"),
    "expression": ("<answer>a if b else c</answer>", "a if b else c", "answer_tag"),
    "literal": ("<answer>[1, {'a': 2}]</answer>", "[1, {'a': 2}]", "answer_tag"),
    "cut off": ("<answer>\nfor i in range(10):\n    pri", "for i in range(10):\n    pri", "answer_tag"),
    "wrong": ("<answer>\ndef f(x) return x\n</answer>", "def f(x) return x", "answer_tag"),
    "wrong print": ("<answer>print 'hello'</answer>", "print 'hello'", "answer_tag"),
    "docstring longer than code": (
        f"<answer>\n{LONG_DOCSTRING}\n</answer>",
        LONG_DOCSTRING,
        "answer_tag",
    ),
    "end of turn": (f"<answer>{F}</answer><|im_end|>", F, "answer_tag"),
    "answer before code": ("<code>a = 1</code><answer>b = 2</answer>", "b = 2", "answer_tag"),
    "last that is code": ("<answer>a = 1</answer> or <answer>I do not know it.</answer>", "a = 1", "answer_tag"),
}

PLAIN = {
    "one": (fenced(""), F),
    "last": (fenced("", code="a = 1") + fenced(""), F),
    "output after it": (fenced("") + "\nOutput:\n```\n5\n```", F),
    "words after it": (fenced("") + "\nOutput:\n```\nhello to all of you\n```", F),
    "only prose": ("```\nI do not know this.\n```", None),
    "only other marks": ("```bash\nls\n```\n```json\n{}\n```", None),
    "named code": (fenced("code"), F),
    "label on the first line": ("```\npython\nx = 1\n```", "x = 1"),
    "indented code is no fence": ("Text:\n\n    x = 1\n", None),
    "nothing": ("", None),
}

BARE = {
    "program": (F, F, "bare"),
    "label first": ("python\n" + F, F, "bare"),
    "with a docstring that has a fence": (
        'def f():\n    """\n```\nf()\n```\n    """',
        'def f():\n    """\n```\nf()\n```\n    """',
        "bare",
    ),
    "with a tag in a string": ("x = '<think>'", "x = '<think>'", "bare"),
    "with chat tokens in a string": ("x = f'<|im_end|>{y}'", "x = f'<|im_end|>{y}'", "bare"),
    "cut off": ("def f(x):\n    retu(", "def f(x):\n    retu(", "bare"),
    "end of turn": (F + "<|im_end|>", F, "bare"),
    "fence in a docstring, end of turn": (DOCSTRING_WITH_FENCE + "</s>", DOCSTRING_WITH_FENCE, "bare"),
    "prose": ("I do not know how to do that.", None, "prose"),
    "empty": (" \n", *NONE),
    "fence": (fenced("py"), F, "fence"),
    "after thinking": ("<think>no</think>" + F, F, "bare"),
    "truncated thinking": ("<think>no\nx = 1", None, "truncated_thinking"),
}

LANGUAGES = {
    "cpp": ["cpp", "c++", "C++", "cc", "cxx", "C++17", "cpp20", "{.cpp}", "main.cpp", "g++"],
    "c": ["c", "C", "c99", "c11", "main.c", "{.c}"],
    "java": ["java", "Java", "java17", "Main.java"],
    "javascript": ["javascript", "js", "node", "JS", "JavaScript", "a.js", "nodejs"],
    "typescript": ["typescript", "ts", "TypeScript", "a.ts"],
    "go": ["go", "golang", "Go", "go1.21", "main.go"],
    "rust": ["rust", "rs", "Rust", "rust,no_run", "rust,edition2021"],
    "bash": ["bash", "sh", "shell", "zsh", "Shell", "run.sh"],
    "diff": ["diff", "patch", "Diff", "fix.patch"],
    "elixir": ["elixir", "Elixir", "{.elixir}", "language-elixir"],
}
SAMPLES = {
    "cpp": "#include <vector>\nint main() { return 0; }",
    "diff": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n ",
}


@pytest.mark.parametrize("label", PYTHON_LABELS)
@pytest.mark.parametrize("mark", ["```", "~~~"])
def test_a_label_means_python(label: str, mark: str) -> None:
    assert extract(fenced(label, mark)) == Extraction(F, "python", "fence")


@pytest.mark.parametrize("label", OTHER_LABELS)
def test_a_label_means_another_language(label: str) -> None:
    assert extract(fenced(label)) == Extraction(None, None, "none")


@pytest.mark.parametrize("name", FENCES)
def test_fences(name: str) -> None:
    completion, code = FENCES[name]
    assert extract(completion) == Extraction(code, "python", "fence")


@pytest.mark.parametrize("name", CONTAINERS)
def test_fences_in_lists_and_quotes(name: str) -> None:
    completion, code = CONTAINERS[name]
    assert extract_code(completion) == code


@pytest.mark.parametrize("name", GLUED)
def test_glued_and_nested_fences(name: str) -> None:
    completion, code = GLUED[name]
    assert extract_code(completion) == code


@pytest.mark.parametrize(
    ("completion", "code", "rule"),
    [
        pytest.param(*case, id=f"{kind}: {name}")
        for kind, table in (("prompt", PROMPT), ("truncated", TRUNCATED), ("thinking", THINKING), ("tags", TAGS))
        for name, case in table.items()
    ],
)
def test_rules(completion: str, code: str | None, rule: str) -> None:
    assert extract(completion) == Extraction(code, None if code is None else "python", rule)


@pytest.mark.parametrize("name", PLAIN)
def test_fences_without_a_mark(name: str) -> None:
    completion, code = PLAIN[name]
    assert extract(completion) == Extraction(code, "python" if code else None, "plain_fence" if code else "none")


@pytest.mark.parametrize("name", BARE)
def test_the_whole_text(name: str) -> None:
    completion, code, rule = BARE[name]
    found = extract(completion, bare=True)
    assert (found.code, found.rule) == (code, rule)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    "form", ["```python\n{}\n```{}", "```python\n{}\n```\n{}", "```python\n{}\n```\nDone.{}", "<answer>{}</answer>{}"]
)
def test_ends_of_a_turn(form: str, end: str) -> None:
    assert extract_code(form.format(F, end)) == F


@pytest.mark.parametrize(
    ("language", "label"), [(language, label) for language, labels in LANGUAGES.items() for label in labels]
)
def test_other_languages(language: str, label: str) -> None:
    code = SAMPLES.get(language, "x y z {\n}")
    expected = code + "\n" if language == "diff" else code
    text = fenced("python") + fenced(label, code=code) + fenced("")
    assert extract(text, language=language) == Extraction(expected, language, "fence")
    if "{" not in label and "," not in label and "." not in label:
        assert extract(text, language=label).code == expected


def test_a_patch_keeps_the_line_ends_of_its_file() -> None:
    patch = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\r\n+b\r\n"
    for text in (f"<solution>\n{patch}</solution>", f"```diff\n{patch}```", f"```\n{patch}```", patch):
        assert extract_code(text, language="diff", bare=text == patch) == patch
    sent = f"```diff\n{patch}```".replace("\r", "").replace("\n", "\r\n")
    assert extract_code(sent, language="diff") == patch.replace("\r", "")


def test_a_patch_keeps_its_blanks() -> None:
    patch = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-a\n+b\n \n"
    for text in (f"<solution>\n{patch}</solution>", f"```diff\n{patch}```", f"```\n{patch}```", patch):
        assert extract_code(text, language="patch", bare=True) == patch
    assert extract_code("<solution>I changed the file.</solution>", language="diff") is None


@pytest.mark.parametrize("language", ["cpp", "c", "java", "javascript", "typescript", "go", "rust", "bash", "haskell"])
def test_prose_is_code_of_no_language(language: str) -> None:
    assert extract_code("<answer>I cannot solve this task.</answer>", language=language) is None
    assert extract_code("I cannot solve this task.", language=language, bare=True) is None


@pytest.mark.parametrize("language", ["", " ", None, 3])
def test_what_is_no_language(language: object) -> None:
    with pytest.raises(TypeError, match="name of a language"):
        extract("x", language=language)  # type: ignore[arg-type]
