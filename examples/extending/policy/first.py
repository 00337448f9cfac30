import fastfed


class First:
    """The first action, whatever it is."""

    def select(self, actions):
        return 0

    def observe(self, reward):
        pass


world = fastfed.environments.Sphere(dimension=3, actions=10)
curves = [{"algorithm": "policy", "policy": First}, {"algorithm": "local-linucb"}]
results = fastfed.simulate(world, curves=curves, silos=2, horizon=200)
print([curve.certificate["status"] for curve in results.curves])
