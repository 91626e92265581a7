"""Commands in this process: starting a new one takes seconds."""

from typer.testing import CliRunner, Result

from anofpdm.cli.main import app


def run(*words: object, code: int = 0) -> Result:
    """`main` only adds a signal handler to `app`."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == code, done.output
    return done
