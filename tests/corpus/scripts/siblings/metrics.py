class Tracker:
    instances = 0

    def __init__(self, name):
        self.name = name
        self.mean = 0.0
        self.count = 0
        type(self).instances += 1

    def add(self, value):
        self.count += 1
        self.mean += (value - self.mean) / self.count

    def __str__(self):
        return f"{self.name} {self.mean:.8f} over {self.count} ({self.instances})"
