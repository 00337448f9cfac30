"""Federations at real silos: durable parties around the step objects, and what they exchange.

`plans` compiles a plan file once, which every silo verifies and signs, if it is of one of the
`kinds` that are deployed; `wire` has the messages; `sums` has what nobody may see alone, and the
helper; `guard` is against members that lie; `seal` and `ledger` see to it that no noise is drawn
twice and no budget spent unseen, and `charges` says how much; `silo` and `hub` are parties as pure
state machines, `phases` and `experts` those of other plans, and `party` runs them on disk. `model`
is what silos act on, `folder` joins plans and makes them go on. `schema` says how records become
features and rewards, `data` reads a silo's table, `replay` rehearses with it. docs/deployment.md
says what is promised. Needs the extra ``deploy``.
"""
