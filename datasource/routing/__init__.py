"""Queries whose targets only the rows know: `routeBy` names columns, and options are templates of them."""
