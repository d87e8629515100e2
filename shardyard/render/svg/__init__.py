"""Pictures of a split report, in plain Python: text in, text out.

    heat_map.heat_map(report, by)   devices across, patterns down, as one SVG document
    page.page(report, about, by)    everything as one HTML file that needs nothing else

All are well-formed XML, the same for the same report, and say in words what they show. What a rank could not measure is
never drawn as 0: the report's note stands there instead. `palette` has the colours and the words, `marks` the rule for
which device is called slow.
"""
