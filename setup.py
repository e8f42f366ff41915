"""Metadata of the one distribution, ``codila``, that installs both packages and the command."""

from pathlib import Path

from setuptools import find_packages, setup

BENCH = ["matplotlib>=3.8", "pandas>=2.0"]
DEV = ["pytest>=8.0", "hypothesis>=6.100", "ruff>=0.9", "mypy>=1.13"]
DEV += ["accelerate>=1.0", "peft>=0.14", "pyarrow>=15"]  # device maps, adapters, Parquet files

setup(
    name="codila",
    version="0.1.0",
    description=(
        "CoDiLA: locally coherent parallel decoding for diffusion language models, "
        "with fused Triton kernels"
    ),
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["codila", "codila.*", "codila_kernels", "codila_kernels.*"]),
    package_data={
        "codila": [
            "py.typed",
            "training/configs/*.json",
            "pretrained/tiny/*/*.json",
            "pretrained/tiny/*/*.safetensors",
        ],
        "codila_kernels": ["py.typed"],
    },
    install_requires=[
        "torch>=2.11",
        # The CPU wheel of torch does not bring triton; the kernels need it wherever they can run.
        "triton>=3.6; platform_system == 'Linux'",
        "transformers>=5.17",
        "safetensors>=0.5",
        "numpy>=1.26",
        "tokenizers>=0.21",
        "typer>=0.12",
        "rich>=13.0",
        "tqdm>=4.66",
    ],
    extras_require={
        "bench": BENCH,
        "dev": DEV + BENCH,
        "train": ["datasets>=3.0", "peft>=0.14", "pyarrow>=15"],
        "gguf": ["gguf>=0.10", "accelerate>=1.0"],
        "eval": ["lm-eval>=0.4"],
    },
    entry_points={"console_scripts": ["codila = codila.cli:main"]},
    classifiers=[
        "License :: OSI Approved :: Apache Software License",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
