"""Cells of a notebook, saved as a script: nn.DataParallel where there are several GPUs, and a progress bar."""

# %%
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

# %%
input_size = 5
output_size = 2
batch_size = 30
data_size = 100
torch.manual_seed(0)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


# %%
class RandomDataset(Dataset):
    def __init__(self, size, length):
        self.data = torch.randn(length, size)

    def __getitem__(self, index):
        return self.data[index]

    def __len__(self):
        return len(self.data)


rand_loader = DataLoader(RandomDataset(input_size, data_size), batch_size=batch_size, shuffle=True)


# %%
class Net(nn.Module):
    def __init__(self, input_size, output_size):
        super().__init__()
        self.fc = nn.Linear(input_size, output_size)

    def forward(self, rows):
        output = self.fc(rows)
        print(f"Model: input size - {tuple(rows.size())}, output size - {tuple(output.size())}")
        return output


# %%
model = Net(input_size, output_size)
if torch.cuda.device_count() > 1:
    print(f"We have {torch.cuda.device_count()} GPUs.")
    model = nn.DataParallel(model)
model.to(device)

# %%
for batch in tqdm(rand_loader):
    output = model(batch.to(device))
