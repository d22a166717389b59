"""Rules: what each dialect writes and each engine release reads, as data from mappings/ and a few named behaviours."""
