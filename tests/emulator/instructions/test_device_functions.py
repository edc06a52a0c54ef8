"""printf and assert in kernels: the text of C's printf, in the order of lanes; other device functions are refused."""

import ctypes

import numpy as np
import pytest

from cute_fa4.emulator.host import ptx_files
from cute_fa4.emulator.instructions.device_functions import formatted
from cute_fa4.emulator.ptx.errors import EmulatorError, UnknownInstruction

LIBC = ctypes.CDLL(None)
FORMATS = {
    "no argument 100%%\n": (),
    "%d %i %u": (ctypes.c_int(-7), ctypes.c_int(7), ctypes.c_uint(1 << 31)),
    "%5d|%-5d|%05d|%+d|% d": tuple(ctypes.c_int(n) for n in (1, -2, 3, 4, 5)),
    "%x %X %#x %o": tuple(ctypes.c_uint(n) for n in (255, 255, 255, 8)),
    "%lld %llu %ld %zu": tuple(ctypes.c_longlong(n) for n in (-(1 << 40), 1 << 40, 5, 6)),
    "%hhd %hu": (ctypes.c_int(300), ctypes.c_int(-1)),
    "%d %lld %d": (ctypes.c_int(1), ctypes.c_longlong(2), ctypes.c_int(3)),
    "%f %.2f %8.3f|%-8.1f|%e %g %G": tuple(ctypes.c_double(x) for x in (1.5, 2, 3, 4, 5e30, 6e-9, 7)),
    "%f %f": (ctypes.c_double(float("nan")), ctypes.c_double(float("-inf"))),
    "%c%c": (ctypes.c_int(65), ctypes.c_int(98)),
    "%s|%-6s|%.2s": (ctypes.c_char_p(b"one"), ctypes.c_char_p(b"two"), ctypes.c_char_p(b"three")),
    "%*d %.*f": (ctypes.c_int(6), ctypes.c_int(7), ctypes.c_int(1), ctypes.c_double(2.25)),
    "%p": (ctypes.c_void_p(0xABCDEF),),
}  # fmt: skip


class Buffer:
    """The arguments in a buffer, each at a multiple of its size."""

    def __init__(self, values):
        self.data, self.at = b"", 0
        for value in values:
            size = ctypes.sizeof(value)
            self.data = self.data.ljust(-(-len(self.data) // size) * size, b"\0") + bytes(value)

    def take(self, dtype):
        size = int(dtype[1:])
        self.at = -(-self.at // size) * size + size
        return np.frombuffer(self.data[self.at - size : self.at], dtype)[0].item()


@pytest.mark.parametrize("template", FORMATS)
def test_the_text_is_that_of_c(template):
    values, expected = FORMATS[template], ctypes.create_string_buffer(500)
    LIBC.snprintf(expected, ctypes.c_size_t(500), template.encode(), *values)
    found = formatted(template, Buffer(values), lambda address: ctypes.string_at(address).decode())
    assert found == (expected.value.decode(), len(values))


HEAD = """.version 8.8
.target sm_100a
.address_size 64
.extern .func (.param .b32 func_retval0) vprintf(.param .b64 a, .param .b64 b);
.extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
.global .align 1 .b8 text[16] = {37, 100, 58, 37, 46, 49, 102, 10};
.global .align 1 .b8 said[4] = {110, 111};
"""
PRINTS = (
    HEAD
    + """
.visible .entry prints(.param .u64 out) {
    .local .align 8 .b8 depot[16];
    .reg .b32 %r<4>; .reg .b64 %rd<8>; .reg .pred %p<2>; .reg .f64 %fd<2>;
    mov.b64 %rd1, depot; cvta.local.u64 %rd2, %rd1; mov.u32 %r1, %tid.x; mov.b32 %r3, -1;
    st.local.b32 [%rd1], %r1; cvt.rn.f64.u32 %fd1, %r1; st.local.f64 [%rd1+8], %fd1;
    mov.b64 %rd3, text; cvta.global.u64 %rd4, %rd3;
    setp.eq.u32 %p1, %r1, 1;
    @%p1 bra DONE;
    {
        .param .b64 param0;
        .param .b64 param1;
        .param .b32 retval0;
        st.param.b64 [param0], %rd4;
        st.param.b64 [param1], %rd2;
        call.uni (retval0), vprintf, (param0, param1);
        ld.param.b32 %r3, [retval0];
    }
DONE:
    ld.param.u64 %rd5, [out]; mul.wide.u32 %rd6, %r1, 4; add.s64 %rd5, %rd5, %rd6; st.global.b32 [%rd5], %r3;
    ret;
}
"""
)
ASSERTS = (
    HEAD
    + """
.visible .entry asserts() {
    .reg .b32 %r<2>; .reg .b64 %rd<3>; .reg .pred %p<2>;
    mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 3; mov.b64 %rd1, said; cvta.global.u64 %rd2, %rd1;
    @%p1 bra DONE;
    {
        .param .b64 param0; .param .b64 param1; .param .b32 param2; .param .b64 param3; .param .b64 param4;
        st.param.b64 [param0], %rd2; st.param.b64 [param1], %rd2; st.param.b32 [param2], 12;
        st.param.b64 [param3], %rd2; st.param.b64 [param4], 1;
        call.uni __assertfail, (param0, param1, param2, param3, param4);
    }
DONE:
    ret;
}
"""
)


def test_lanes_print_in_order_and_get_the_number_of_arguments(capsys):
    out = np.zeros(4, np.int32)
    ptx_files.load(PRINTS).launch(out, grid=1, block=4)
    assert capsys.readouterr().out == "0:0.0\n2:2.0\n3:3.0\n"
    assert out.tolist() == [2, -1, 2, 2]


def test_a_failed_assertion_has_its_message_place_and_lanes():
    with pytest.raises(
        EmulatorError, match=r"assertion failed: no \(no:12, no\) in lanes \[3, 4\]"
    ):
        ptx_files.load(ASSERTS).launch(grid=1, block=5)


@pytest.mark.parametrize(
    "call",
    ["call.uni (retval0), other, (param0, param1);", "call (retval0), %rd4, (param0), prototype;"],
)
def test_other_functions_are_refused(call):
    text = PRINTS.replace("call.uni (retval0), vprintf, (param0, param1);", call)
    with pytest.raises(UnknownInstruction, match="except vprintf and __assertfail"):
        ptx_files.load(text).launch(np.zeros(4, np.int32), grid=1, block=4)
