"""Every table and figure of the papers, and what this machine makes of it: `onward study NAME`."""

from . import backbone, block_sizes, boolq, carriers, gates, hotpotqa, overlap, topics, window_size
from .masked import MLM, STABILITY
from .reporting import Claim, Report, Table
from .study import Run, Setting, Study, Work, conduct, report

STUDIES = {
    study.name: study
    for study in (
        backbone.STUDY,
        *overlap.STUDIES,
        *window_size.STUDIES,
        *carriers.STUDIES,
        *topics.STUDIES,
        hotpotqa.STUDY,
        boolq.STUDY,
        gates.STUDY,
        *block_sizes.STUDIES,
        MLM,
        STABILITY,
    )
}

__all__ = ["STUDIES", "Claim", "Report", "Run", "Setting", "Study", "Table", "Work", "conduct", "report"]
