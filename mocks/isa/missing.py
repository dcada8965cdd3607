"""Instructions of gfx1100 that are decoded but not executed, with the reason. A wave that reaches one stops with NotModelled."""

from __future__ import annotations

import re

# reason -> pattern of mnemonics
NOT_EXECUTED = {
    "graphics": r"image_.*|exp|lds_(param|direct)_load|v_interp_.*|v_cube(id|sc|tc|ma)_f32|v_mullit_f32",
    "ray tracing": r"ds_bvh_stack_rtn_b32",
    "typed buffers: formats are not modelled": r"t?buffer_(load|store)_(d16_)?(hi_)?format_.*",
    "global wave sync and global data share": r"ds_gws_.*|ds_ordered_count|ds_(add|sub)_gs_reg_rtn",
    "only library code for huge arguments of sine and cosine": r"v_trig_preop_f64",
    "wave64": r"s_.*_(saveexec|wrexec)_b64|s_subvector_loop_(begin|end)",
    "trap handlers": r"s_rfe_b64",
    "address translation probes": r"s_atc_probe.*",
}


def why_not_executed(mnemonic: str) -> str:
    """The reason, or "" for instructions that are executed."""
    return next((reason for reason, pattern in NOT_EXECUTED.items() if re.fullmatch(pattern, mnemonic)), "")
