"""Kullback-Leibler divergence of two distributions per row, given as logits."""

import torch
import torch.nn as nn
import torch.nn.functional as F

ROWS = 4001
CLASSES = 4003
PROFILES = {
    "cpu": {"ROWS": 6, "CLASSES": 59},
    "small": {"ROWS": 301, "CLASSES": 501},
    "full": {"ROWS": 4001, "CLASSES": 4003},
}


class Model(nn.Module):
    def forward(self, student, teacher):
        wanted = F.log_softmax(teacher, dim=-1)
        return torch.sum(torch.exp(wanted) * (wanted - F.log_softmax(student, dim=-1)), dim=-1)


def get_inputs():
    return [torch.randn(ROWS, CLASSES), torch.randn(ROWS, CLASSES) * torch.rand(ROWS, 1) * 2.0]


def get_init_inputs():
    return []
