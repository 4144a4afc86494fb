from seckill.stress.bench.start import Start, StartBench


def test_the_first_start_stands_apart_and_the_later_ones_as_their_median() -> None:
    found = StartBench(
        workers=2,
        first=Start(first_sale_s=4.0, processor_s=6.0, memory_mb=270.0),
        later=(Start(3.0, 5.0, 260.0), Start(2.0, 4.0, 250.0), Start(2.5, 9.0, 240.0)),
    )
    _, _, first, later = found.to_text().splitlines()
    assert first.split() == ["first", "4.00", "s", "6.00", "s", "270", "MB"]
    assert later.split() == ["later", "2.50", "s", "5.00", "s", "250", "MB"]
    assert found.to_dict()["first"]["first_sale_s"] == 4.0
