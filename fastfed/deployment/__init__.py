"""Federations at real silos: durable parties around the step objects, and what they exchange.

`plans` compiles a plan file once, which every silo verifies and signs, if it is one that
`supported` knows, and `extend` makes plans that go on after others; `wire` has the messages; `sums`
and `counts` have what nobody may see alone; `guard` is against members that lie;
`seal` and `ledger` see to it that no noise is drawn twice and no budget spent unseen; `silo`, `hub`
and `helper` are the parties as pure state machines, which `process` runs on disk. `schema` says how
records become features and rewards, `data` reads a silo's table, `replay` rehearses with it.
docs/deployment.md says what is promised. Needs the extra ``deploy``.
"""
