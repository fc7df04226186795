"""What Linux says of the processor."""

from padir.runtime import cpu


def test_the_first_processor(tmp_path, monkeypatch):
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: Some CPU: fast\nflags\t\t: fpu amx_int8\n\nmodel name\t: Another\n")
    monkeypatch.setattr(cpu, "_CPUINFO", file)
    assert cpu.cpu_info("model name") == "Some CPU: fast"
    assert cpu.x86_extensions() == {"fpu", "amx_int8"}
    assert cpu.cpu_info("model") == ""


def test_where_it_is_not_told(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu, "_CPUINFO", tmp_path / "cpuinfo")
    assert cpu.cpu_info("model name") == "" and cpu.x86_extensions() == frozenset()
