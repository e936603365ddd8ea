"""Questions over many windows: Table 3 of "Adding Recurrence", and yes or no about articles."""
