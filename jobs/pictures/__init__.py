"""Pictures of a split report: a heat map and bars as SVG, and one HTML file that holds everything."""
