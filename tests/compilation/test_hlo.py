"""Reading programs: a text written by hand, whose costs are known."""

from padir.compilation.hlo import Collective, Loop, analyse

PROGRAM = """\
HloModule jit_f, is_scheduled=true

FileNames
1 "/somewhere/site-packages/jax/numpy.py"
2 "/somewhere/padir/nn/layers.py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=1 end_column=2}
2 {file_name_id=2 function_name_id=1 line=40 end_line=40 column=1 end_column=2}

StackFrames
1 {file_location_id=2 parent_frame_id=1}
2 {file_location_id=1 parent_frame_id=2}

%body (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %all-reduce.1 = f32[4]{0} all-reduce(%p), replica_groups={{0,1}}, to_apply=%sum
  ROOT %b = f32[4]{0} fusion(%all-reduce.1), kind=kLoop, calls=%inner, metadata={op_name="b" stack_frame_id=2}, \
backend_config={"estimated_cycles":"10"}
}

%condition (c: f32[4]) -> pred[] {
  %c = f32[4]{0} parameter(0)
  ROOT %less = pred[] fusion(%c), kind=kLoop, calls=%inner, backend_config={"estimated_cycles":"2"}
}

%cheap (x: f32[4]) -> f32[4] {
  ROOT %x = f32[4]{0} copy(%x.1), backend_config={"estimated_cycles":"5"}
}

%dear (y: f32[4]) -> f32[4] {
  ROOT %y = f32[4]{0} copy(%y.1), backend_config={"estimated_cycles":"50"}
}

ENTRY %main (a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  %first = f32[4]{0} fusion(%a), kind=kLoop, calls=%inner, metadata={op_name="first" stack_frame_id=1}, \
backend_config={"estimated_cycles":"100"}
  %send.1 = (bf16[8,2]{1,0}, u32[], token[]) send(%first, %t), is_host_transfer=true, \
frontend_attributes={_xla_megascale_transfer_type="ALL_REDUCE"}
  %known = f32[4]{0} while(%first), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %open = f32[4]{0} while(%known), condition=%condition, body=%body
  %outfeed.1 = token[] outfeed(%open, %t)
  ROOT %chosen = f32[4]{0} conditional(%i, %a, %a), branch_computations={%cheap, %dear}
}
"""


def test_cycles_of_loops_and_branches():
    found = analyse(PROGRAM, trips=4)
    assert found.loops == [Loop(12, 3, True), Loop(12, 4, False)]
    assert found.once == 100 + 50
    assert found.cycles == 150 + (3 + 4) * 12


COUNTED = """\
%condition (c: (s32[], f32[4])) -> pred[] {
  %limit = s32[]{:T(256)} constant(6)
  %c = (s32[], f32[4]{0}) parameter(0)
  %count = s32[]{:T(256)} get-tuple-element(%c), index=0
  ROOT %less = pred[]{:T(1024)} compare(%count, %limit), direction=LT, metadata={op_name="less"}
}

%body (b: (s32[], f32[4])) -> (s32[], f32[4]) {
  ROOT %b = f32[4]{0} copy(%b.1), backend_config={"estimated_cycles":"7"}
}

ENTRY %main (a: f32[4]) -> f32[4] {
  ROOT %loop = (s32[], f32[4]{0}) while(%a), condition=%condition, body=%body
}
"""


def test_trips_of_a_loop_that_only_counts():
    """As those of micro-batches and of layers do."""
    assert analyse(COUNTED, trips=4).loops == [Loop(7, 6, True)]
    other = COUNTED.replace("compare(%count, %limit)", "compare(%limit, %count)")
    assert analyse(other, trips=4).loops == [Loop(7, 4, False)]


def test_a_branch_can_be_named():
    assert analyse(PROGRAM, branch=(2, 0)).once == 100 + 5
    assert analyse(PROGRAM, branch=(3, 0)).once == 100 + 50


def test_costs_by_the_innermost_source_line_of_ours():
    found = analyse(PROGRAM, trips=4)
    assert found.by_source == {"padir/nn/layers.py:40": 100 + 7 * 10, "other": 7 * 2 + 50}
    assert found.by_module == {"padir/nn/layers.py": 170, "other": 64}


def test_collectives_and_host_transfers():
    found = analyse(PROGRAM, trips=4)
    assert found.collectives == [
        Collective("all-reduce", False, 7, 7 * 16),
        Collective("all-reduce", True, 1, 32),
    ]
    assert found.host_transfers == 1
    assert found.opcodes["while"] == 2
