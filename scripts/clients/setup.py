"""Environments for the client matrix: one for each Kafka client, under `.cache/clients/`.

Every client of tests/clients gets its own Python environment or its own class path, because two of
them (kafka-python 2.0.2 and 3.x, Java 3.9 and 4.x) are one package in two versions, and because the
project's own environment must not change with a test client. Only the standard library is needed.

    python scripts/clients/setup.py            all of them; a line each
    python scripts/clients/setup.py kcat       one

`prepare` is idempotent and returns at once when the environment exists: its last step writes a
stamp that holds the recipe, so a changed recipe builds again and a half-built one never counts.
What this machine cannot have (no root for a system package, no network) raises `Unavailable` with
one line that says why; the tests skip those cells, or fail them where `CI` is set.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
CACHE = PROJECT / ".cache" / "clients"
# A cold resolve of the Kafka tools downloads some 60 MB; more than this is a dead network.
STEP_SECONDS_MAX = 600
APT_LOCK_S = 300
JDK_MIN = 17  # What Kafka 4's tools and clients are compiled for.

SLF4J_NOP = "org.slf4j:slf4j-nop:1.7.36"
JACKSON = "com.fasterxml.jackson.core:jackson-databind:2.19.0"
KAFKA_4 = "4.3.1"


class Unavailable(Exception):
    """This machine cannot have that environment; the message says why in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonRecipe:
    """A virtual environment. `newest` is the last Python version that the client imports on."""

    requirements: tuple[str, ...]
    newest: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaRecipe:
    """A directory of jars: the artifacts and all that they need at run time."""

    artifacts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JarsRecipe:
    """A directory of exactly these jars: their poms name repositories that may not be reachable."""

    artifacts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRecipe:
    """A program of the operating system: its names on PATH and its Debian package."""

    names: tuple[str, ...]
    package: str


Recipe = PythonRecipe | JavaRecipe | JarsRecipe | ProgramRecipe

ENVIRONMENTS: dict[str, Recipe] = {
    "confluent-kafka": PythonRecipe(requirements=("confluent-kafka>=2.16,<3",)),
    "kafka-python-2": PythonRecipe(
        requirements=(
            "kafka-python==2.0.2",
            "python-snappy>=0.7,<1",
            "lz4>=4,<5",
            "zstandard>=0.23,<1",
        ),
        newest=(3, 11),  # Its vendored `six` does not import on 3.12.
    ),
    "kafka-python-3": PythonRecipe(
        requirements=("kafka-python[crc32c,lz4,snappy,zstd]>=3.0.12,<4",)
    ),
    "aiokafka": PythonRecipe(requirements=("aiokafka[lz4,snappy,zstd]>=0.14,<0.15",)),
    "java-3.9": JavaRecipe(
        artifacts=("org.apache.kafka:kafka-clients:3.9.2", JACKSON, SLF4J_NOP),
    ),
    "java-4": JavaRecipe(
        artifacts=(f"org.apache.kafka:kafka-clients:{KAFKA_4}", JACKSON, SLF4J_NOP),
    ),
    "kafka-tools": JavaRecipe(
        artifacts=(
            f"org.apache.kafka:kafka_2.13:{KAFKA_4}",
            f"org.apache.kafka:kafka-tools:{KAFKA_4}",
            SLF4J_NOP,
        ),
    ),
    "kafka-applications": JavaRecipe(
        artifacts=(
            f"org.apache.kafka:kafka-streams:{KAFKA_4}",
            f"org.apache.kafka:connect-runtime:{KAFKA_4}",
            f"org.apache.kafka:connect-file:{KAFKA_4}",
            SLF4J_NOP,
        ),
    ),
    # Spark's own Kafka source and sink, for tests/spark; the set was tried with PySpark 4.3.
    "spark-kafka": JarsRecipe(
        artifacts=(
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
            "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
            "org.apache.kafka:kafka-clients:3.9.2",
            "org.apache.commons:commons-pool2:2.12.1",
            "org.lz4:lz4-java:1.8.0",
        ),
    ),
    "kcat": ProgramRecipe(names=("kcat", "kafkacat"), package="kcat"),
    "jdk": ProgramRecipe(names=("javac",), package="default-jdk-headless"),
    "maven": ProgramRecipe(names=("mvn",), package="maven"),
}


def prepare(name: str) -> Path:
    """The environment's entry: a Python interpreter, a directory of jars, or a program."""
    recipe = ENVIRONMENTS[name]
    if isinstance(recipe, ProgramRecipe):
        return _program(recipe)
    home = CACHE / name
    with _locked(name):
        if not _ready(home, recipe):
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir(parents=True)
            if isinstance(recipe, PythonRecipe):
                _make_python(home, recipe)
            elif isinstance(recipe, JarsRecipe):
                _copy_jars(home, recipe)
            else:
                _make_java(home, recipe)
            (home / "stamp").write_text(repr(recipe))
    return _python_of(home) if isinstance(recipe, PythonRecipe) else home / "jars"


def compile_java(name: str, *sources: Path) -> str:
    """The class path of `sources`, compiled once against that environment's jars."""
    jars = prepare(name)
    _check_jdk()
    classes = CACHE / name / "classes"
    wanted = "".join(source.read_text() for source in sources)
    compiled = classes / "sources"
    with _locked(name):
        if not (compiled.exists() and compiled.read_text() == wanted):
            shutil.rmtree(classes, ignore_errors=True)
            classes.mkdir()
            _run(["javac", "-cp", f"{jars}/*", "-d", str(classes), *map(str, sources)])
            compiled.write_text(wanted)
    return f"{classes}:{jars}/*"


def _ready(home: Path, recipe: Recipe) -> bool:
    stamp = home / "stamp"
    return stamp.exists() and stamp.read_text() == repr(recipe)


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    """Test workers prepare in parallel; the first one builds and the others wait for it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: list[str], **variables: str) -> str:
    # An outer environment must not leak into the one that is being built.
    inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=STEP_SECONDS_MAX,
            env=inherited | variables,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{Path(command[0]).name} could not run: {error}") from None
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
        telling = next((line for line in lines if "error" in line.lower()), lines[-1])
        raise Unavailable(f"`{Path(command[0]).name} {command[1]}` failed: {telling.strip()}")
    return done.stdout


def _python_of(home: Path) -> Path:
    return home / "venv" / "bin" / "python"


def _uv() -> str | None:
    beside = PROJECT / ".venv" / "bin" / "uv"
    return str(beside) if beside.exists() else shutil.which("uv")


def _make_python(home: Path, recipe: PythonRecipe) -> None:
    venv = str(home / "venv")
    uv = _uv()
    if uv is not None:
        below = f">=3.9,<3.{recipe.newest[1] + 1}" if recipe.newest else sys.executable
        _run([uv, "venv", "--quiet", "--python", below, venv])
        _run([uv, "pip", "install", "-q", "--python", str(_python_of(home)), *recipe.requirements])
        return
    _run([_interpreter(recipe.newest), "-m", "venv", venv])
    install = ["-m", "pip", "install", "--quiet", "--retries", "2", *recipe.requirements]
    _run([str(_python_of(home)), *install])


def _interpreter(newest: tuple[int, int] | None) -> str:
    """A Python that the client imports on: this one, or an older one on PATH."""
    if newest is None or sys.version_info[:2] <= newest:
        return sys.executable
    for minor in range(newest[1], 8, -1):
        candidate = shutil.which(f"python3.{minor}")
        # A version switcher leaves commands on PATH that only say that they are not installed.
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
            return candidate
    raise Unavailable(f"no Python up to {newest[0]}.{newest[1]} on PATH and no uv to fetch one")


POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>chronik</groupId>
  <artifactId>clients</artifactId>
  <version>1</version>
  <dependencies>{dependencies}
  </dependencies>
</project>
"""
DEPENDENCY = """
    <dependency>
      <groupId>{}</groupId>
      <artifactId>{}</artifactId>
      <version>{}</version>
    </dependency>"""


def _make_java(home: Path, recipe: JavaRecipe) -> None:
    _check_jdk()
    maven = prepare("maven")
    pom = home / "pom.xml"
    dependencies = (DEPENDENCY.format(*artifact.split(":")) for artifact in recipe.artifacts)
    pom.write_text(POM.format(dependencies="".join(dependencies)))
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={home / 'jars'}"]
    _run([str(maven), "-q", "-B", "-f", str(pom), *goal, "-DincludeScope=runtime"])


def _copy_jars(home: Path, recipe: JarsRecipe) -> None:
    maven = prepare("maven")
    for artifact in recipe.artifacts:
        copy = ["dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={home / 'jars'}"]
        _run([str(maven), "-q", "-B", *copy])


def _check_jdk() -> None:
    version = _run([str(prepare("jdk")), "-version"])
    number = re.search(r"javac (\d+)", version)
    if number is None or int(number[1]) < JDK_MIN:
        raise Unavailable(f"a JDK {JDK_MIN} or newer is needed, this is {version.strip()}")


def _program(recipe: ProgramRecipe) -> Path:
    found = _which(recipe)
    if found is None:
        with _locked("apt"):
            found = _which(recipe) or _install(recipe)
    return found


def _which(recipe: ProgramRecipe) -> Path | None:
    paths = (shutil.which(name) for name in recipe.names)
    return next((Path(path) for path in paths if path), None)


def _install(recipe: ProgramRecipe) -> Path:
    if shutil.which("apt-get") is None:
        raise Unavailable(f"{recipe.names[0]} is not installed and there is no apt-get to do it")
    if os.geteuid() != 0:
        raise Unavailable(
            f"{recipe.names[0]} is not installed; run `apt-get install {recipe.package}`"
        )
    # Another apt, of the system's own upgrades say, holds the lock for a while.
    apt_get = ["apt-get", "-o", f"DPkg::Lock::Timeout={APT_LOCK_S}"]
    install = [*apt_get, "install", "-y", "--no-install-recommends", recipe.package]
    try:
        _run(install, DEBIAN_FRONTEND="noninteractive")
    except Unavailable:
        # A fresh image has no package lists yet.
        _run([*apt_get, "update"])
        _run(install, DEBIAN_FRONTEND="noninteractive")
    found = _which(recipe)
    if found is None:
        raise Unavailable(f"the package {recipe.package} has no {recipe.names[0]}")
    return found


def main(names: list[str]) -> int:
    """Prepare the named environments, or all, and say a line for each; 1 if `CI` and one failed."""
    failed = False
    for name in names or ENVIRONMENTS:
        try:
            print(f"{name}: {os.path.relpath(prepare(name))}")
        except Unavailable as error:
            failed = True
            print(f"{name}: unavailable: {error}")
    return int(failed and os.environ.get("CI", "") not in ("", "false", "0"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
