"""The chapters of the PTX ISA that all GPUs share: spellings.py counts them after those of Blackwell.

(chapter, name, templates, why spellings without a meaning have none)
"""

_INTEGERS = "{u16|s16|u32|s32|u64|s64}"
_EVERY = "{u8|s8|u16|s16|u32|s32|u64|s64}"
_ROUNDING, _NEAREST = "{.rn|.rz|.rm|.rp}", "{|.rn|.rz|.rm|.rp}"
_INTEGRAL = "{.rni|.rzi|.rmi|.rpi}"
_FTZ, _SAT, _RELU, _SATFINITE = "{.ftz|}", "{.sat|}", "{.relu|}", "{.satfinite|}"
_BOOL = "{|.and|.or|.xor}"
_COMPARE = "{eq|ne|lt|le|gt|ge}"
_FLOAT_COMPARE = "{eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan}"
_WORDS = "{u32|s32}"
_SIGNS = f"{_WORDS}.{_WORDS}.{_WORDS}"
_SPACE = "{|.global|.shared|.shared::cta|.shared::cluster}"
_LOADS = "{|.weak|.volatile|.relaxed.gpu|.acquire.sys|.acquire.cluster|.relaxed.cta}"
_STORES = _LOADS.replace("acquire", "release")
_ATOMICS = (
    "atom{|.relaxed.gpu|.acquire.cta|.release.cluster|.acq_rel.sys}",
    "red{|.relaxed.gpu|.release.cluster}",
)
_ELEMENTS = ("{|.v2|.v4}.{b8|b16|b32|u8|u16|u32|s8|s16|s32|f32}", "{|.v2}.{b64|u64|s64|f64}")
_VIDEO = "published semantics and an H200 differ: sums of u32 wrap, minima of u32 are those of s32"

GENERAL = (
    ("integers", "add, sub, mul, mad", (
        f"{{add|sub}}.{_INTEGERS}", "add.{u16x2|s16x2}", "{add|sub}.sat.s32", f"{{mul|mad}}.{{hi|lo}}.{_INTEGERS}",
        "{mul|mad}.wide.{u16|s16|u32|s32}", "mad.hi.sat.s32",
    ), ""),
    ("integers", "with a carry", (
        "{add|sub}.cc.{u32|s32|u64|s64}", "{addc|subc}{|.cc}.{u32|s32|u64|s64}",
        "mad.{lo|hi}.cc.{u32|s32|u64|s64}", "madc.{lo|hi}{|.cc}.{u32|s32|u64|s64}",
    ), ""),
    ("integers", "div, rem, abs, neg, min, max, sad", (
        f"{{div|rem|sad}}.{_INTEGERS}", "{abs|neg}.{s16|s32|s64}", f"{{min|max}}.{_INTEGERS}",
        "{min|max}.{u16x2|s16x2}",
        "{min|max}.relu.{s16x2|s32}",
    ), ""),
    ("integers", "mul24, mad24, dp4a, dp2a", (
        f"{{mul24|mad24}}.{{lo|hi}}.{_WORDS}", "mad24.hi.sat.s32", f"{{dp4a|dp2a.lo|dp2a.hi}}.{_WORDS}.{_WORDS}",
    ), ""),
    ("integers", "bits", (
        "{popc|clz|brev}.{b32|b64}", "bfind{.shiftamt|}.{u32|u64|s32|s64}", "fns.b32", "bfe.{u32|u64|s32|s64}",
        "bfi.{b32|b64}", f"szext.{{clamp|wrap}}.{_WORDS}", "bmsk.{clamp|wrap}.b32",
        "prmt.b32{|.f4e|.b4e|.rc8|.ecl|.ecr|.rc16}",
    ), ""),
    ("integers", "logic, shifts", (
        "{and|or|xor|not}.{pred|b16|b32|b64}", "cnot.{b16|b32|b64}", "lop3{|.or|.and}.b32",
        "shf.{l|r}.{clamp|wrap}.b32", "shl.{b16|b32|b64}", f"shr.{{b16|b32|b64|{_INTEGERS[1:-1]}}}",
    ), ""),
    ("integers", "video, scalar", (
        f"{{vadd|vsub|vabsdiff|vmin|vmax}}.{_SIGNS}{_SAT}{{|.add|.min|.max}}",
    ), _VIDEO),
    ("integers", "video, parts of words", (
        f"{{vadd|vsub|vavrg|vabsdiff|vmin|vmax}}{{2|4}}.{_SIGNS}{{|.sat|.add}}",
        f"vset{{2|4}}.{_WORDS}.{_WORDS}.{_COMPARE}{{|.add}}",
    ), ""),
    ("floating point", "f32", (
        f"{{add|sub|mul}}{_NEAREST}{_FTZ}{_SAT}.f32", f"{{fma|mad}}{_ROUNDING}{_FTZ}{_SAT}.f32",
        f"div{{.approx|.full|.rn|.rz|.rm|.rp}}{_FTZ}.f32", f"{{rcp|sqrt}}{{.approx|.rn|.rz|.rm|.rp}}{_FTZ}.f32",
        f"{{abs|neg}}{_FTZ}.f32", f"{{min|max}}{_FTZ}{{.NaN|}}{{|.abs|.xorsign.abs}}.f32",
        f"{{rsqrt|sin|cos|lg2|ex2}}.approx{_FTZ}.f32", "tanh.approx.f32", "copysign.f32",
        "testp.{finite|infinite|number|notanumber|normal|subnormal}.f32",
        f"{{add|sub}}{_NEAREST}{_SAT}.f32.{{f16|bf16}}", f"fma{_ROUNDING}{_SAT}.f32.{{f16|bf16}}",
    ), ""),
    ("floating point", "f32x2", (
        f"{{add|sub|mul}}{_NEAREST}{_FTZ}.f32x2", f"fma{_ROUNDING}{_FTZ}.f32x2",
    ), ""),
    ("floating point", "f64", (
        f"{{add|sub|mul}}{_NEAREST}.f64", f"{{fma|mad|div|rcp|sqrt}}{_ROUNDING}.f64", "{abs|neg|min|max|copysign}.f64",
        "testp.{finite|infinite|number|notanumber|normal|subnormal}.f64", "{rcp|rsqrt}.approx.ftz.f64",
        "rsqrt.approx.f64",
    ), "approximations of f64: the bits of their results are not specified"),
    ("floating point", "f16, bf16", (
        f"{{add|sub|mul}}{{|.rn}}{_FTZ}{_SAT}.{{f16|f16x2}}", "{add|sub|mul}{|.rn}.{bf16|bf16x2}",
        f"fma.rn{_FTZ}{{.sat|.relu|}}.{{f16|f16x2}}", f"fma.rn{_RELU}.{{bf16|bf16x2}}",
        f"fma.rn.oob{_RELU}.{{f16|f16x2|bf16|bf16x2}}", f"{{neg|abs}}{_FTZ}.{{f16|f16x2}}", "{neg|abs}.{bf16|bf16x2}",
        f"{{min|max}}{_FTZ}{{.NaN|}}{{.xorsign.abs|}}.{{f16|f16x2}}", "{min|max}{.NaN|}{.xorsign.abs|}.{bf16|bf16x2}",
        "tanh.approx.{f16|f16x2|bf16|bf16x2}", "ex2.approx.{f16|f16x2}", "ex2.approx.ftz.{bf16|bf16x2}",
    ), ""),
    ("comparison", "setp", (
        f"setp.{_COMPARE}{_BOOL}.{_INTEGERS}", f"setp.{{eq|ne}}{_BOOL}.{{b16|b32|b64}}",
        f"setp.{{lo|ls|hi|hs}}{_BOOL}.{{u16|u32|u64}}", f"setp.{_FLOAT_COMPARE}{_BOOL}{_FTZ}.{{f32|f16|f16x2}}",
        f"setp.{_FLOAT_COMPARE}{_BOOL}.{{f64|bf16|bf16x2}}",
    ), ""),
    ("comparison", "set", (
        f"set.{_COMPARE}{_BOOL}.{{u32|s32|f32|f16|bf16}}.{_INTEGERS}",
        f"set.{{eq|ne}}{_BOOL}.{{u32|s32|f32|f16|bf16}}.{{b16|b32|b64}}",
        f"set.{{lo|ls|hi|hs}}{_BOOL}.{{u32|s32|f32|f16|bf16}}.{{u16|u32|u64}}",
        f"set.{_FLOAT_COMPARE}{_BOOL}{_FTZ}.{{u32|s32|f32|f16}}.f32",
        f"set.{_FLOAT_COMPARE}{_BOOL}.bf16.{{f32|f64|f16}}",
        f"set.{_FLOAT_COMPARE}{_BOOL}.{{u32|s32|f32|f16}}.f64",
        f"set.{_FLOAT_COMPARE}{_BOOL}{_FTZ}.{{u32|s32|f16|u16|s16}}.f16",
        f"set.{_FLOAT_COMPARE}{_BOOL}.{{u32|s32|bf16|u16|s16}}.bf16",
        f"set.{_FLOAT_COMPARE}{_BOOL}{_FTZ}.{{u32|s32|f16x2}}.f16x2",
        f"set.{_FLOAT_COMPARE}{_BOOL}.{{u32|s32|bf16x2}}.bf16x2",
    ), ""),
    ("comparison", "selp, slct", (
        f"selp.{{b16|b32|b64|f32|f64|{_INTEGERS[1:-1]}}}", f"slct.{{b16|b32|b64|f32|f64|{_INTEGERS[1:-1]}}}.s32",
        f"slct{_FTZ}.{{b16|b32|b64|f32|f64|{_INTEGERS[1:-1]}}}.f32",
    ), ""),
    ("conversion", "integers and floats", (
        f"cvt.{_EVERY}.{_EVERY}", f"cvt{_INTEGRAL}{_FTZ}{_SAT}.{_EVERY}.f32",
        f"cvt{_INTEGRAL}{_SAT}.{_EVERY}.{{f16|f64}}",
        f"cvt{_INTEGRAL}.{_INTEGERS}.bf16", f"cvt{_ROUNDING}{_SAT}.{{f16|f32|f64}}.{_EVERY}",
        f"cvt{_ROUNDING}.bf16.{_INTEGERS}", "cvt.pack.sat.{u16|s16}.s32", "cvt.pack.sat.{u8|s8|u4|s4|u2|s2}.s32.b32",
    ), ""),
    ("conversion", "floats of 16, 32 and 64 bits", (
        f"cvt{_ROUNDING}{_FTZ}{_SAT}.f32.f64", f"cvt{_FTZ}{_SAT}.f64.f32", f"cvt{_ROUNDING}{_FTZ}{_SAT}.f16.f32",
        f"cvt{_ROUNDING}{_SAT}.f16.f64", f"cvt{_ROUNDING}.bf16.{{f64|f16}}", f"cvt{_ROUNDING}{_FTZ}.bf16.f32",
        f"cvt{_FTZ}{_SAT}.f32.f16", f"cvt{_SAT}.f64.f16", "cvt.{f32|f64}.bf16", f"cvt{_ROUNDING}.f16.bf16",
        f"cvt{_INTEGRAL}{_FTZ}{_SAT}.f32.f32", f"cvt{_INTEGRAL}{_SAT}.{{f64.f64|f16.f16}}", f"cvt{_INTEGRAL}.bf16.bf16",
        "cvt.{f32.f32|bf16.bf16}", f"cvt{_SAT}.f16.f16",
        f"cvt{{.rn|.rz}}{_RELU}{_SATFINITE}.{{f16|bf16|f16x2|bf16x2}}.f32",
        f"cvt.rs{_RELU}{_SATFINITE}.{{f16x2|bf16x2}}.f32", f"cvt.rna{_SATFINITE}.tf32.f32",
        f"cvt{{.rn|.rz}}{_SATFINITE}{_RELU}.tf32.f32",
    ), ""),
    ("conversion", "floats of 4, 6 and 8 bits", (
        f"cvt.rn.satfinite{_RELU}.{{e4m3x2|e5m2x2|e2m1x2|e2m3x2|e3m2x2}}.{{f32|f16x2|bf16x2}}",
        f"cvt.rn{_RELU}.{{f16x2|bf16x2}}.{{e4m3x2|e5m2x2|e2m1x2|e2m3x2|e3m2x2}}",
        f"cvt{{.rz|.rp}}{_SATFINITE}.ue8m0x2.{{f32|bf16x2}}", "cvt.rn.bf16x2.ue8m0x2",
        f"cvt.rs{_RELU}.satfinite.{{e4m3x4|e5m2x4|e2m1x4|e2m3x4|e3m2x4}}.f32",
    ), "stochastic rounding of four values: published emulations disagree on its random bits"),
    ("moves", "mov, cvta, isspacep", (
        f"mov.{{b16|b32|b64|b128|f32|f64|pred|{_INTEGERS[1:-1]}}}",
        "cvta{.to|}.{const|global|local|shared|shared::cta|shared::cluster|param|param::entry}.{u32|u64}",
        "isspacep.{const|global|local|shared|shared::cta|shared::cluster|param|param::entry}",
    ), ""),
    ("moves", "ld", (
        *(f"ld{_LOADS}{_SPACE}{each}" for each in _ELEMENTS), *(f"ldu{{.global|}}{each}" for each in _ELEMENTS),
        *(f"ld{{.local|.const|.param|.param::entry}}{each}" for each in _ELEMENTS),
        "ld.global{.ca|.cg|.cs|.lu|.cv|.nc}.b32",
        "ld.global{|.nc}{|.L2::64B|.L2::128B|.L2::256B}{.v8.b32|.v4.b64|.b128}",
    ), ""),
    ("moves", "st", (
        *(f"st{_STORES}{_SPACE}{each}" for each in _ELEMENTS), *(f"st.local{each}" for each in _ELEMENTS),
        "st.global{.wb|.cg|.cs|.wt}.b32", "st.global{|.L2::cache_hint}{.v8.b32|.v4.b64|.b128}",
    ), ""),
    ("moves", "atom, red", (
        *(f"{each}{_SPACE}.{{and|or|xor}}.{{b32|b64}}" for each in _ATOMICS),
        *(f"{each}{_SPACE}.{{add|min|max}}.{{u32|s32|u64}}" for each in _ATOMICS),
        *(f"{each}{_SPACE}.{{add.f32|add.f64|inc.u32|dec.u32|min.s64|max.s64}}" for each in _ATOMICS),
        *(f"{each}{_SPACE}.add.noftz.{{f16|f16x2|bf16|bf16x2}}" for each in _ATOMICS),
        f"{_ATOMICS[0]}{_SPACE}.{{exch.b32|exch.b64|exch.b128|cas.b16|cas.b32|cas.b64|cas.b128}}",
        *(f"{each}.global.add{{.v2|.v4}}.f32" for each in _ATOMICS),
        *(f"{each}.global.{{add|min|max}}.noftz{{.v2|.v4|.v8}}.{{f16|bf16}}" for each in _ATOMICS),
        *(f"{each}.global.{{add|min|max}}.noftz{{.v2|.v4}}.{{f16x2|bf16x2}}" for each in _ATOMICS),
    ), ""),
    ("warps", "shfl, vote, match, redux, barriers", (
        "shfl.sync.{up|down|bfly|idx}.b32", "vote.sync.{all.pred|any.pred|uni.pred|ballot.b32}",
        "match.{any|all}.sync.{b32|b64}", "redux.sync.{add|min|max}.{u32|s32}", "redux.sync.{and|or|xor}.b32",
        "redux.sync.{min|max}{.abs|}{.NaN|}.f32", "elect.sync", "activemask.b32", "bar.warp.sync",
        "{bar|bar.cta|barrier|barrier.cta}.{sync|arrive}", "{barrier|barrier.cta}.{sync|arrive}.aligned",
    ), ""),
    ("warps", "ldmatrix, stmatrix, movmatrix", (
        "{ldmatrix|stmatrix}.sync.aligned.m8n8.{x1|x2|x4}{.trans|}{|.shared|.shared::cta}.b16",
        "ldmatrix.sync.aligned.m8n16.{x1|x2|x4}{|.shared|.shared::cta}.b8x16.{b6x16_p32|b4x16_p64}",
        "ldmatrix.sync.aligned.m16n16.{x1|x2}.trans{|.shared|.shared::cta}.{b8|b8x16.b6x16_p32|b8x16.b4x16_p64}",
        "stmatrix.sync.aligned.m16n8.{x1|x2|x4}.trans{|.shared|.shared::cta}.b8",
        "movmatrix.sync.aligned.m8n8.trans.b16",
    ), ""),
    ("warps", "mma.sync", (
        "mma.sync.aligned.m16n8k{8|16}.row.col.{f16.f16.f16.f16|f32.f16.f16.f32|f32.bf16.bf16.f32}",
        "mma.sync.aligned.m16n8k{4|8}.row.col.f32.tf32.tf32.f32",
        "mma.sync.aligned.{m8n8k4|m16n8k4|m16n8k8|m16n8k16}.row.col.f64.f64.f64.f64",
        f"mma.sync.aligned.{{m8n8k16|m16n8k16|m16n8k32}}.row.col{_SATFINITE}.s32.{{u8|s8}}.{{u8|s8}}.s32",
        f"mma.sync.aligned.{{m8n8k32|m16n8k32|m16n8k64}}.row.col{_SATFINITE}.s32.{{u4|s4}}.{{u4|s4}}.s32",
        "mma.sync.aligned.{m8n8k128|m16n8k128|m16n8k256}.row.col.s32.b1.b1.s32.{xor|and}.popc",
        "mma.sync.aligned.m16n8k{16|32}.row.col.f16.e4m3.e4m3.f16",
        "mma.sync.aligned.m16n8k{16|32}.row.col.f32.{e4m3|e5m2}.{e4m3|e5m2}.f32",
        "mma.sync.aligned.m8n8k4.{row|col}.{row|col}.{f32.f16.f16.f32|f16.f16.f16.f16|f32.f16.f16.f16}",
    ), "m8n8k4 of f16: a shape of sm_70"),
)  # fmt: skip
