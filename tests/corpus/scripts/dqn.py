import copy
import random
import time
from collections import deque, namedtuple

import torch

Transition = namedtuple("Transition", "state action reward after")


class ReplayBuffer:
    def __init__(self, capacity):
        self.memory = deque(maxlen=capacity)

    def push(self, *fields):
        self.memory.append(Transition(*fields))

    def sample(self, size):
        return Transition(*map(torch.stack, zip(*random.sample(self.memory, size))))


class Walk:
    """A line of nine cells with a goal that moves now and then."""

    def __init__(self):
        self.place, self.goal = 4, 8

    def observe(self):
        state = torch.zeros(18)
        state[self.place] = 1.0
        state[9 + self.goal] = 1.0
        return state

    def step(self, action):
        self.place = max(0, min(8, self.place + (1 if action else -1)))
        reward = float(self.place == self.goal)
        if reward or random.random() < 0.02:
            self.goal = random.randrange(9)
        return torch.tensor(reward)


def main():
    random.seed(18)
    torch.manual_seed(18)
    torch.set_num_threads(1)
    env, buffer = Walk(), ReplayBuffer(150)
    q = torch.nn.Sequential(torch.nn.Linear(18, 24), torch.nn.ReLU(), torch.nn.Linear(24, 2))
    target = copy.deepcopy(q)
    optimizer = torch.optim.Adam(q.parameters(), lr=3e-3)
    epsilon, total, state = 1.0, 0.0, env.observe()
    for step in range(260):
        action = random.randrange(2) if random.random() < epsilon else q(state).argmax().item()
        reward = env.step(action)
        after = env.observe()
        buffer.push(state, torch.tensor(action), reward, after)
        state = after
        total += reward.item()
        epsilon = max(0.05, epsilon * 0.99)
        if len(buffer.memory) < 32:
            continue
        batch = buffer.sample(16)
        with torch.no_grad():
            goal = batch.reward + 0.9 * target(batch.after).max(1).values
        value = q(batch.state).gather(1, batch.action[:, None]).squeeze(1)
        loss = torch.nn.functional.huber_loss(value, goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            target.load_state_dict(q.state_dict())
            print(f"step {step} reward {total} eps {epsilon:.4f} loss {loss.item():.7f}", flush=True)
        time.sleep(0.007)
    torch.save({"q": q.state_dict(), "target": target.state_dict()}, "out.pt")


if __name__ == "__main__":
    main()
