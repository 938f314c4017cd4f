import math
import time

import numpy as np
import torch


class Pendulum:
    def __init__(self, seed):
        self.rng = np.random.RandomState(seed)
        self.episodes = 0
        self.reset()

    def reset(self):
        self.angle, self.speed = self.rng.uniform(-0.3, 0.3, 2)
        self.ticks = 0
        self.episodes += 1
        return self.observe()

    def observe(self):
        return torch.tensor([math.sin(self.angle), math.cos(self.angle), self.speed], dtype=torch.float32)

    def step(self, action):
        self.speed += 0.15 * math.sin(self.angle) + 0.2 * (action - 0.5) + self.rng.normal(0, 0.01)
        self.angle += 0.1 * self.speed
        self.ticks += 1
        done = abs(self.angle) > 1.0 or self.ticks >= 40
        return self.observe(), 1.0 - abs(self.angle), done


def run_episode(env, policy):
    state, done = env.reset(), False
    log_probs, rewards = [], []
    while not done:
        choice = torch.distributions.Categorical(logits=policy(state))
        action = choice.sample()
        log_probs.append(choice.log_prob(action))
        state, reward, done = env.step(action.item())
        rewards.append(reward)
    return torch.stack(log_probs), rewards


def main():
    torch.manual_seed(17)
    torch.set_num_threads(1)
    env = Pendulum(17)
    policy = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
    baseline = None
    for episode in range(80):
        log_probs, rewards = run_episode(env, policy)
        value = sum(rewards)
        baseline = value if baseline is None else 0.9 * baseline + 0.1 * value
        loss = -(log_probs.sum() * (value - baseline))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.015)
        if episode % 4 == 3:
            print(f"episode {episode} return {value:.6f} baseline {baseline:.6f} n {env.episodes}", flush=True)
    torch.save(policy.state_dict(), "out.pt")


if __name__ == "__main__":
    main()
