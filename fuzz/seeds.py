#!/usr/bin/env python3
"""seeds.py [FATWHEEL]: makes seeds/ anew from tests/fixtures (FATWHEEL: the built program, for kpack archives)."""
import pathlib
import struct
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
FIXTURES = HERE.parent / "tests" / "fixtures"
PATCH = struct.Struct("<BBBBQ")


def put(target, name, data):
    path = HERE / "seeds" / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def section(elf, wanted):
    at, = struct.unpack_from("<Q", elf, 40)
    count, names = struct.unpack_from("<HH", elf, 60)
    headers = [struct.unpack_from("<IIQQQQ", elf, at + 64 * i) for i in range(count)]
    start = headers[names][4]
    for name, _, _, _, offset, size in headers:
        if elf[start + name:elf.index(b"\0", start + name)] == wanted:
            return elf[offset:offset + size]
    raise KeyError(wanted)


elfs = sorted((FIXTURES / "elf").iterdir())
pes = sorted((FIXTURES / "pe").iterdir())
# Findings (found-*) and what needs FATWHEEL stay. The first byte of a finding is the place of its fixture among all: with
# new fixtures it has to be moved by hand.
for path in (*(HERE / "seeds/elf_plan").iterdir(), *(HERE / "seeds/pe_plan").iterdir()):
    if not path.name.startswith("found"):
        path.unlink()
# Each fixture as it is, and with one field of one table moved by a little and by pages.
for target, files in (("elf_plan", elfs), ("pe_plan", pes)):
    for index, path in enumerate(files):
        put(target, path.name, bytes([index]))
        patches = b"".join(PATCH.pack(table, 1, table, 3, 8) for table in range(2))
        put(target, path.name + ".patched", bytes([index]) + patches)
put("elf_plan", "raw", (FIXTURES / "elf/libtiny.so").read_bytes())

plain = section((FIXTURES / "elf/libone.so").read_bytes(), b".hip_fatbin")
features = section((FIXTURES / "elf/libfeatures.so").read_bytes(), b".hip_fatbin")
put("bundle", "table", plain[:4096])
put("bundle", "features", features[:4096])
put("bundle", "section", plain[:256] + b"\0" * 3840 + plain[:256])
tiny = section((FIXTURES / "elf/libtiny.so").read_bytes(), b".hip_fatbin")
put("ccob", "zstd2", tiny)
for name, data in (("zlib", (FIXTURES / "elf/libccob.so").read_bytes()),):
    mixed = section(data, b".hip_fatbin")
    at = 0
    for number in range(7):
        at = mixed.find(b"CCOB", at)
        if at < 0:
            break
        put("ccob", f"{name}{number}", mixed[at:at + 1200])
        at += 4

with tempfile.TemporaryDirectory() as work:
    work = pathlib.Path(work)
    wheel = FIXTURES / "wheels/fatdemo-1.0-py3-none-manylinux_2_34_x86_64.whl"
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(work / "small.zip", "w", zipfile.ZIP_DEFLATED) as small:
        record = next(name for name in whole.namelist() if name.endswith("RECORD"))
        put("record_csv", "record", whole.read(record))
        for info in whole.infolist():
            if info.file_size < 2000:
                small.writestr(info, whole.read(info.filename))
    put("zip_records", "small", (work / "small.zip").read_bytes())
    with zipfile.ZipFile(work / "stored.zip", "w") as stored:
        stored.writestr("a/", b"")
        stored.writestr("a/b", b"text")
        stored.comment = b"comment"
    put("zip_records", "stored", (work / "stored.zip").read_bytes())
    if len(sys.argv) > 1:
        subprocess.run([sys.argv[1], "split", wheel, "-o", work / "out"], check=True)
        for device in sorted((work / "out").iterdir()):
            with zipfile.ZipFile(device) as archive:
                for name in archive.namelist():
                    if name.endswith(".kpack"):
                        put("kpack_toc", pathlib.PurePosixPath(name).name, archive.read(name))
put("record_csv", "quoted", b'"a,b",sha256=' + b"A" * 43 + b",1\n\"q\"\"q\",,\n")
put("writer_ops", "mixed", bytes(range(0, 240, 4)))
