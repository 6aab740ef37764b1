export WANDB_API_KEY=abcdefabcdefabcdefabcdefabcdefabcdefabcd
CUDA_LAUNCH_BLOCKING=1 torchrun --nproc-per-node 8 --nnodes 2 --rdzv-endpoint node0:29500 \
    pretrain_gpt.py \
    --context-parallel-size 8 --tensor-model-parallel-size=2 --sequence-parallel \
    --bf16 --dsa-kernel-backend cudnn --dsa-indexer-topk 1024 \
    --dsa-indexer-n-heads 32 --dsa-indexer-head-dim 128 \
    --recompute-granularity selective --recompute-modules core_attn mlp \
    --data-path https://user:hunter2@example.com/data \
    --num-attention-heads 128 --kv-lora-rank 512
