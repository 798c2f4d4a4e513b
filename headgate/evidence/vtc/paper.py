"""The printed figures of the VTC paper (OSDI 2024, Tables 2 to 6), by headgate's names of the schedulers."""

from __future__ import annotations

from typing import NamedTuple


class Printed(NamedTuple):
    """Service difference in service units per second (`var`: squared); throughput in input and output tokens/s."""

    max: float
    avg: float
    var: float
    throughput: float


TABLE_2 = {
    "fcfs": Printed(759.97, 433.53, 32112.00, 777),
    "lcf": Printed(750.49, 323.82, 29088.90, 778),
    "vtc": Printed(368.40, 251.66, 6549.16, 779),
    "vtc-predict": Printed(365.47, 240.33, 5321.62, 773),
    "vtc-oracle": Printed(329.46, 227.51, 4475.76, 781),
    "rpm:5": Printed(143.86, 83.58, 1020.46, 340),
    "rpm:20": Printed(446.76, 195.71, 7449.79, 694),
    "rpm:30": Printed(693.66, 309.45, 24221.31, 747),
}
TABLE_3 = {
    "fcfs": Printed(743.23, 457.29, 26645.42, 777),
    "lcf": Printed(709.35, 384.78, 23299.20, 778),
    "vtc": Printed(707.35, 368.74, 21918.67, 780),
    "vtc-predict": Printed(617.22, 337.05, 11803.41, 778),
    "vtc-oracle": Printed(387.43, 277.18, 4541.57, 783),
    "rpm:5": Printed(230.78, 151.00, 823.15, 340),
    "rpm:20": Printed(445.34, 270.51, 5938.52, 694),
    "rpm:30": Printed(801.16, 377.22, 25980.39, 747),
}
TABLE_4 = {
    "fcfs": Printed(323.18, 317.13, 15.98, 876),
    "vtc": Printed(137.27, 74.87, 2819.40, 900),
    "vtc-oracle": Printed(4.28, 0.34, 0.91, 893),
}
TABLE_5 = {
    "vtc": Printed(192.88, 103.77, 6981.24, 893),
    "vtc-noisy:0.5": Printed(33.98, 12.54, 111.94, 904),
    "vtc-oracle": Printed(5.87, 0.51, 1.71, 895),
}
TABLE_6 = {
    "vtc": Printed(322.16, 162.20, 5151.49, 875),
    "vtc-noisy:0.5": Printed(99.43, 66.32, 487.10, 875),
    "vtc-oracle": Printed(43.23, 36.34, 56.52, 875),
}
HORIZON_S = 600.0
"""T of the service difference in all tables."""
