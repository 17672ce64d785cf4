"""`bench cost`: what forwards cost on this machine."""

import json

from akunu_py.cli.bench import describe_model, measure_costs, print_tables
from akunu_py.cli.bench_settings import CostSettings
from akunu_py.cli.loading import load_engine


def run(settings: CostSettings) -> int:
    """Measures, keeps the curve for the engine, and prints it; progress goes to standard error.

    Raises:
        AkunuError: if it cannot be measured, or not drawn.
    """
    if settings.plot is not None:
        from akunu_py.bench.plots import check_can_plot  # noqa: PLC0415  (before all that takes long)

        check_can_plot(settings.plot)
    engine = load_engine(settings.model)
    from akunu_py.bench.cost_report import CostReport  # noqa: PLC0415
    from akunu_py.bench.measurement import describe_machine, machine_line  # noqa: PLC0415

    curve = measure_costs(engine, settings.seconds)
    report = CostReport(describe_machine(engine.backend), describe_model(engine), curve)
    if settings.plot is not None:
        from akunu_py.bench.plots import draw_cost  # noqa: PLC0415

        draw_cost(report, settings.plot)
    if settings.as_json:
        print(json.dumps(report.as_json()))
        return 0
    model = report.model
    print(f"{model['name']}, {model['layout']} weights; {machine_line(report.machine)}\n")
    print_tables(report.tables())
    print(f"\n{report.payoff}")
    if settings.plot is not None:
        print(f"Drawn into {settings.plot}.")
    return 0
