"""How the suite compiles, which compiles more than it computes: XLA spends no time on optimising.

JAX's own switch for that is `JAX_DISABLE_MOST_OPTIMIZATIONS`. The loops of XLA's fusion emitters, which need what it
switches off, are left out as well, as long as XLA had that option: that halves the time again. And a module is compiled
in one piece, because splitting a small one among threads costs more than it saves. Children get it from the
environment, too.
"""

import jaxlib.version

_OPTIONS: dict[str, bool | int] = {"xla_cpu_parallel_codegen_split_count": 1}
# With jaxlib 0.11 this is an error.
if jaxlib.version.__version_info__ < (0, 11):
    _OPTIONS["xla_cpu_use_fusion_emitters"] = False


def install() -> None:
    """Makes `jax_disable_most_optimizations` leave out the emitters, program by program: `optimised` can end it."""
    import jax
    from jax._src import compiler

    options = compiler.get_compile_options

    def without_emitters(*arguments, **named):
        made = options(*arguments, **named)
        if jax.config.read("jax_disable_most_optimizations"):
            made.env_option_overrides = [*made.env_option_overrides, *_OPTIONS.items()]
        return made

    compiler.get_compile_options = without_emitters


def child_flags(devices: int = 1) -> str:
    """`XLA_FLAGS` of a child process with so many CPU devices, which compiles as its parent does at the moment."""
    import jax

    flags = [f"--xla_force_host_platform_device_count={devices}"]
    if jax.config.read("jax_disable_most_optimizations"):
        flags += [f"--{name}={str(value).lower()}" for name, value in _OPTIONS.items()]
    return " ".join(flags)
