"""Command lines that are refused before anything is computed: a message with the way out, and nothing is written."""

import inspect
import shlex
from pathlib import Path
from typing import get_args

import pytest
from typer.models import OptionInfo

import dmkl
from dmkl.cli.commands import COMMANDS, command
from dmkl.errors import InputError
from dmkl.solvers.workspace import Workspace

URL = "s3://bucket/name"
GIVEN = "say which with --state FOLDER"
AT_URL = "is a URL, and what stands there has to be a file"
MODELS = "mkcox or mkfda or mkglm or mklogistic or mkridge or"

REFUSED = {
    "fit SET out --train twice.txt": "'s01' more than once",
    "fit SET out --split 7": "there is no split 7",
    "fit SET out --split 0 --all": "exclude one another",
    "fit SET out --split 0 --priors flat": "empirical, uniform, numbers such as",
    "fit SET out --split 0 --priors apple=0.5,apple=0.5": "two numbers for a class",
    "fit SET out --split 0 --priors apple=x,pear=0.5": "class=number",
    "fit SET out --all --scoring accuracy": "there are none",
    "fit SET out --log --all": "--log takes a file to append to, as --log run.log, got '--all'",
    "fit SET out --log twice.txt/run.log": "no log can be written to",
    "fit SET out --plot picture.jpg": "pictures are .png, .pdf or .svg",
    "fit SET out --model mksvm --solver cg": f"--solver is for --model {MODELS} product",
    "search SET out --model mksvm --solver cg": f"--solver is for --model {MODELS} product",
    "fit SET out --model ncuts --p 2": f"--p is for --model {MODELS} mksvm",
    "search SET out --model ncuts --p 2": "'p' is no parameter of NCuts",
    "fit SET out --model gmkl --sigma dear": "--sigma takes a number or a file of kernel,price, got 'dear'",
    "search SET out --model gmkl --sigma dear": "--sigma takes a number or a file of kernel,price, got 'dear'",
    "fit SET out --model gmkl --constraints none.toml": "cannot be read",
    "search SET out --model gmkl --constraints none.toml": "cannot be read",
    "search SET SET": "--overwrite",
    "search SET SET --overwrite": "is not a search",
    "search SET out --p 1 --grid p=2": "twice",
    "search SET out --grid depth=1": "'depth' is no parameter of MKFDA",
    "search SET out --solver 'direct(basis=1GiB)'": "direct takes master=",
    f"search SET {URL}": GIVEN,
    f"evaluate SET {URL}": GIVEN,
    "importance SET out --kernel-group good": "takes a name and kernels",
    "importance SET out --kernel-group good=gene*": "no kernel is called 'gene*'",
    f"import out {URL}": AT_URL,
    f"build out {URL} --function rbf": AT_URL,
    "predict SET SET": "is not a model",
    "predict MODEL other.zarr": "'s00'",
    "predict MODEL MODEL": "not a kernel set",
    "predict MODEL SET --split 0 --rows none": "--split and --rows exclude one another",
    "predict MODEL SET --split 1 --part validation": "part of split 1 is empty; choose another with --split or",
    "predict MODEL SET --out p.csv --rows s04": "'s04' is no file that is there, and 's04' no position",
    "predict MODEL SET --out p.csv --rows 3,45": "--rows 3,45: 45 is not among the positions of this set's 45",
    "predict MODEL SET --out p.csv --rows 3,1:4": "--rows 3,1:4 has position 3 more than once; each sample is taken",
    "predict MODEL SET --out p.csv --rows 5:5": "--rows 5:5 chooses none of the 45 samples; name some, or leave it out",
    "export MODEL SET k.mat": "suffixes .npy, .csv, .zarr, .grm.bin, .h5ad, got 'k.mat'",
    "export MODEL SET memory://x/k.grm.bin": "has to be a file of this machine; write .npy or .zarr there",
    "export MODEL SET k.grm.bin --rows=0:3": "holds a square matrix, and these are rows against training samples",
    "export MODEL SET k.npy --anndata=cells.h5ad": "--anndata is for a kernel in a file that ends in .h5ad",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_refused_leaves_nothing(error_of, tmp_path, store, model, kernels, monkeypatch, line):
    monkeypatch.setattr(Workspace, "commit", lambda *_: pytest.fail("something ran"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "twice.txt").write_text("s01\ns02\ns01")
    dmkl.create("other.zarr", kernels[:1, :20, :20], tile=16)
    before = sorted(tmp_path.iterdir())
    assert REFUSED[line] in error_of(*({"SET": store, "MODEL": model}.get(word, word) for word in shlex.split(line)))
    assert sorted(tmp_path.iterdir()) == before


# --- URLs where files are expected -----------------------------------------------------------------------------------
def options_of_files():
    """Yield each option that takes a file or a folder, with its command."""
    for name in COMMANDS:
        for parameter in inspect.signature(command(name), eval_str=True).parameters.values():
            kind, *info = get_args(parameter.annotation) or (None,)
            if Path in (kind, *get_args(kind)) and isinstance(info[0], OptionInfo):
                flags = [flag for flag in (info[0].default, *(info[0].param_decls or ())) if isinstance(flag, str)]
                yield name, [*flags, f"--{parameter.name.replace('_', '-')}"][0]


@pytest.mark.parametrize(("name", "option"), list(options_of_files()))
def test_options_that_take_files_refuse_urls(error_of, tmp_path, monkeypatch, name, option):
    monkeypatch.chdir(tmp_path)
    commands_of_one = "info check analyze associate predict preflight run submit report".split()
    needed = {"demo": 0, "export": 3, **dict.fromkeys(commands_of_one, 1)}
    words = f"{URL} {AT_URL} or folder of this machine"
    required = ["--out", "nothing.csv"] if name == "transform" else []
    assert words in error_of(name, *["nothing"] * needed.get(name, 2), *required, option, URL)
    assert not list(tmp_path.iterdir())


def test_a_state_is_at_no_url(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for state in (URL, Path(URL)):
        with pytest.raises(InputError, match="the state of a search has to be a file or folder of this machine"):
            dmkl.search(dmkl.MKFDA(), dmkl.open(store), None, {"p": [2]}, 2, state=state)
    assert not list(tmp_path.iterdir())
