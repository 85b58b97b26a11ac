-- Whether less output was held than was asked for, because no more was affordable; and whether that ended the answer.
--
-- Rows from before were not told apart: they say false.
ALTER TABLE inference_requests_audit ${on_cluster}
    ADD COLUMN IF NOT EXISTS budget_cut Bool DEFAULT false AFTER log_key,
    ADD COLUMN IF NOT EXISTS stopped_by LowCardinality(String)
        ALIAS if(budget_cut AND finish_reason = 'length', 'budget', '') AFTER budget_cut;
