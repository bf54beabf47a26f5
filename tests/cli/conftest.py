"""Run the command line in this process, as a shell would."""

import pytest

from dgnumba.cli import gpu, main


@pytest.fixture
def run(capsys):
    """``run("gemm", "a.npy", ...)`` gives (exit code, stdout, stderr)."""

    def call(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main([str(x) for x in arguments])
        out, err = capsys.readouterr()
        return stopped.value.code or 0, out, err

    return call


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(gpu, "missing", lambda: "none is here")
