"""Pictures of a split report: text in, text out (`heat_map`, `bar_chart`, `line_chart`, and pages of them).

All are well-formed XML, the same for the same report, and say in words what they show. What a rank could not measure is
never drawn as 0: the report's note stands there instead. `highlights` has the rule for which device is called slow.
"""
